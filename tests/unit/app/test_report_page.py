"""The page: whole in one file, balanced, escaped, and without a count that should not be seen."""

import json
import re
from html.parser import HTMLParser

import pytest
from made_up_evaluation import EVIL, write_made_up_evaluation
from made_up_model import made_up_facts

from app.report.answers import ReportAnswers
from app.report.read_evaluation import read_evaluation
from app.report.report_page import build_report, write_report
from data_schemas.errors import UsageError

VOID = {"meta", "input", "br", "link", "img", "hr"}
COUNT_HEADINGS = {
    "people", "cases", "people at risk", "had the outcome", "died without it", "lost before", "followed beyond",
}  # fmt: skip


class Page(HTMLParser):
    """Elements, ids and tables of a page; complains where tags do not balance."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.rows, self._open, self._cell = [], [], [], [], [], None
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self._note(tag, dict(attrs))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self._cell = []

    def handle_startendtag(self, tag, attrs):
        self._note(tag, dict(attrs))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        if tag in {"td", "th"}:
            self.rows[-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell.append(data)

    def _note(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs[name] for name in ("href", "src", "xlink:href", "action") if name in attrs]


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    return read_evaluation(write_made_up_evaluation(tmp_path_factory.mktemp("evaluation") / "tables"))


@pytest.fixture(scope="module")
def parts(evaluation):
    return build_report(evaluation, made_up_facts(), ReportAnswers())


@pytest.fixture(scope="module")
def page(parts):
    return Page(parts.html)


def test_it_needs_no_network_and_no_other_file(parts, page):
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert "@import" not in parts.html
    assert not re.search(r"url\((?!#)", parts.html)
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", parts.html)  # names of languages, which nothing loads
    assert "http:" not in without_names
    assert "https:" not in without_names


def test_tags_balance_and_every_link_leads_somewhere(parts, page):
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert parts.html.startswith("<!DOCTYPE html>")


def test_names_of_outcomes_are_text_and_not_markup(parts, page):
    assert EVIL not in parts.html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in parts.html
    assert page.tags.count("script") == 1


def test_no_count_from_1_to_9_is_in_any_table(page):
    """Every number below a heading that counts people."""
    checked, headings = 0, []
    for row in page.rows:
        if set(row) & COUNT_HEADINGS:
            headings = row
        elif len(row) == len(headings):
            for heading, cell in zip(headings, row, strict=True):
                if heading in COUNT_HEADINGS and cell.replace(",", "").isdigit():
                    checked += 1
                    assert int(cell.replace(",", "")) >= 10 or cell == "0", row
    assert checked > 50
    row = next(row for row in page.rows if row[0] == "sex: unknown" and "under 10" in row)
    assert row[2:4] == ["under 10", "–"]


def test_a_small_split_is_withheld_with_what_would_tell_it(parts):
    assert "<strong>under 10</strong>tuning" in parts.html
    assert "<strong>12,390</strong>train" in parts.html  # 12,387, and the total is known elsewhere
    assert "12,387" not in parts.html + json.dumps(parts.card)


def test_sections_say_how_they_are_read_and_what_is_left_out(parts, tmp_path):
    assert parts.html.count('<p class="how">How to read: ') == parts.html.count("<section") >= 9
    left_out = ("decision_curve", "calibration_curve", "calibration", "censoring", "outcomes")
    bare = build_report(
        read_evaluation(write_made_up_evaluation(tmp_path / "bare", leave_out=left_out)),
        made_up_facts(),
        ReportAnswers(),
    )
    Page(bare.html)
    for name in left_out[:-1]:
        assert f"this evaluation has no table <code>{name}.parquet</code>" in bare.html
    assert "no table" not in parts.html
    assert bare.html.count("<svg") < parts.html.count("<svg")


def test_the_same_tables_give_the_same_page(evaluation, parts):
    assert build_report(evaluation, made_up_facts(), ReportAnswers()).html == parts.html


def test_answers_stand_on_the_page(evaluation):
    answers = ReportAnswers(title="Our <model>", tripod={"18a": "A & B"}, model_card={"BasicInfo.ModelDeveloper": "We"})
    html = build_report(evaluation, made_up_facts(), answers).html
    assert "<h1>Our &lt;model&gt;</h1>" in html
    assert "A &amp; B" in html


def test_the_cards_lie_beside_the_page(parts, tmp_path):
    files = write_report(parts, tmp_path / "report.html")
    assert [file.name for file in files] == ["report.html", "model_card.json", "model_card.xml", "tripod_ai.json"]
    assert all(file.stat().st_size > 1000 for file in files)
    assert len(json.loads(files[3].read_text())["items"]) == 52
    with pytest.raises(UsageError, match="--out is the file for the page"):
        write_report(parts, tmp_path)
