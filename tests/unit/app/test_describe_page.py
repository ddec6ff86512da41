"""The page of a cohort: whole in one file, and no text of the cohort becomes markup."""

import re
from html.parser import HTMLParser

import polars as pl
import pytest
from small_cohort import write_small_cohort

from app.describe_page import description_lines, render_page, write_page
from data_schemas.errors import UsageError
from pipelines.describe_cohort import describe_cohort


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = write_small_cohort(tmp_path_factory.mktemp("page") / "cohort")
    codes = pl.read_parquet(folder / "codes.parquet")
    evil = pl.when(pl.col("code") == "angina").then(pl.lit("<script>alert('a')</script> & more"))
    codes.with_columns(evil.otherwise("description").alias("description")).write_parquet(folder / "codes.parquet")
    return folder


@pytest.fixture(scope="module")
def page(cohort):
    return render_page(describe_cohort(cohort), "Cohort <small>")


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_it_needs_no_network_and_no_other_file(page):
    parser = Elements()
    parser.feed(page)
    tags = {tag for tag, _ in parser.found}
    assert {"svg", "table", "style"} <= tags
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & tags
    links = [
        value for _, attrs in parser.found for name, value in attrs.items() if name in {"href", "src", "xlink:href"}
    ]
    assert all(link.startswith("#") for link in links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_texts_of_the_cohort_are_escaped(page):
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#39;a&#39;)&lt;/script&gt; &amp; more" in page
    assert "<title>Cohort &lt;small&gt;</title>" in page


def test_it_shows_four_plots_whose_ids_differ_and_the_same_page_twice(cohort, page):
    assert page.count("<svg") == 4
    ids = re.findall(r'(?<!\w)id="([^"]+)"', page)
    clip_ids = [name for name in ids if name.startswith("p") and len(name) > 8]
    assert len(clip_ids) == len(set(clip_ids)) > 0
    assert render_page(describe_cohort(cohort), "Cohort <small>") == page


def test_the_rare_disease_is_on_neither_page_nor_terminal(cohort, page):
    lines = "\n".join(description_lines(describe_cohort(cohort)))
    assert "porphyria" not in page + lines
    assert "300 people" in lines
    assert "under 10 people, not shown" in lines


def test_a_page_that_cannot_be_written_says_why(cohort, tmp_path):
    description = describe_cohort(cohort)
    with pytest.raises(UsageError, match="is a folder"):
        write_page(description, "x", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_page(description, "x", tmp_path / "file" / "page.html")
