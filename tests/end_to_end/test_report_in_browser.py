"""The report in a real browser: sorting and filtering work, nothing is wider than a phone, and all of it is there
without scripts."""

import json
import re
import shutil
import subprocess
from html import escape

import pytest
from made_up_evaluation import write_made_up_evaluation
from made_up_model import made_up_facts

from app.report.answers import ReportAnswers
from app.report.read_evaluation import read_evaluation
from app.report.report_page import build_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for found in map(shutil.which, BROWSERS) if found), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no headless browser here ({', '.join(BROWSERS)})")

PHONE_WIDTH = 375
# What a reader does, and what the table looks like after each step.
STEPS = """
const table = document.getElementById("outcome-table"), form = document.getElementById("outcome-filters");
const heads = Array.from(table.tHead.rows[0].cells);
const head = (name) => heads.find((cell) => cell.textContent.trim() === name);
const shown = () => Array.from(table.tBodies[0].rows).filter((row) => !row.hidden);
const column = (name) => shown().map((row) => row.cells[heads.indexOf(head(name))]);
const choose = (name, value) => {
  form.elements[name].value = value;
  form.dispatchEvent(new Event("input", { bubbles: true }));
};
const sorted = () => heads.filter((cell) => cell.hasAttribute("aria-sort"))
  .map((cell) => [cell.textContent.trim(), cell.getAttribute("aria-sort")]);
const found = { rows: table.tBodies[0].rows.length, first: shown().length, filters: !form.hidden };
choose("landmark", ""); choose("horizon", "");
found.all = shown().length;
head("cases").querySelector("button").click();
found.falling = column("cases").map((cell) => Number(cell.dataset.value));
found.after_one = sorted();
head("cases").querySelector("button").click();
found.rising = column("cases").map((cell) => Number(cell.dataset.value));
found.after_two = sorted();
head("outcome").querySelector("button").click();
found.names = column("outcome").map((cell) => cell.textContent.trim());
found.after_three = sorted();
choose("text", "STRO");
found.named = column("outcome").map((cell) => cell.textContent.trim());
found.said = document.getElementById("outcome-count").textContent;
"""


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    tables = write_made_up_evaluation(tmp_path_factory.mktemp("evaluation") / "tables")
    return build_report(read_evaluation(tables), made_up_facts(), ReportAnswers()).html


def open_page(text, folder, *options):
    """Open a page and return what the browser has made of it."""
    page = folder / "page.html"
    page.write_text(text, encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", *options, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_in_page(html, script, folder):
    """Run a script at the end of the page, and return the object `found` that it has made."""
    last = '<pre id="found"></pre><script>(() => {%s document.getElementById("found").textContent ='
    last += ' "FOUND" + JSON.stringify(found) + "END"; })();</script></body>'
    dom = open_page(html.replace("</body>", last.replace("%s", script)), folder)
    text = re.search(r'<pre id="found">FOUND(.*)END</pre>', dom, flags=re.DOTALL)
    assert text, "the script did not come to its end"
    return json.loads(text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_sorting_and_filtering(html, tmp_path):
    found = run_in_page(html, STEPS, tmp_path)
    assert found["filters"] is True
    assert found["first"] == 4  # entry, five years
    assert found["all"] == found["rows"] == 22
    assert found["falling"] == sorted(found["falling"], reverse=True)
    assert found["rising"] == sorted(found["rising"])
    assert len(set(found["falling"])) > 3
    assert found["after_one"] == [["cases", "descending"]]
    assert found["after_two"] == [["cases", "ascending"]]
    assert found["after_three"] == [["outcome", "ascending"]]
    names = [name.lower() for name in found["names"]]
    assert [name.startswith("death") for name in names].index(True) < names.index(
        next(n for n in names if "stroke" in n)
    )
    assert {name.split("stroke in")[0] for name in found["named"]} == {"stroke"}
    assert found["said"] == "6 of 22 rows"


def look_into_frame(html, script, folder, attributes=""):
    """Show the page in a frame as wide as a phone, and return the object `found` that a script outside of it has made.

    The frame is there before its page is, so the script waits for both.
    """
    style = f"width:{PHONE_WIDTH}px;height:800px;border:0"
    frame = f'<iframe {attributes} style="{style}" srcdoc="{escape(html, quote=True)}"></iframe>'
    last = 'document.getElementById("found").textContent = "FOUND" + JSON.stringify(found) + "END";'
    look = f'window.addEventListener("load", () => {{ const page = frames[0].document; {script} {last} }});'
    dom = open_page(f'<!DOCTYPE html><body>{frame}<pre id="found"></pre><script>{look}</script></body>', folder)
    return json.loads(re.search(r"FOUND(\{[^<]*\})END</pre>", dom)[1])


def test_nothing_is_wider_than_a_phone(html, tmp_path):
    script = """
      const whole = page.documentElement, wide = (part) => part.getBoundingClientRect().right > whole.clientWidth + 0.5;
      const found = {
        seen: whole.clientWidth, scrolled: whole.scrollWidth, sections: page.querySelectorAll("section").length,
        wide: Array.from(page.querySelectorAll("main > *, section > *")).filter(wide).map((part) => part.className),
      };
    """
    found = look_into_frame(html, script, tmp_path)
    assert found["sections"] >= 9
    assert found["wide"] == []
    assert found["scrolled"] <= found["seen"] <= PHONE_WIDTH


def test_without_scripts_every_row_is_there(html, tmp_path):
    script = """
      const rows = Array.from(page.querySelectorAll("#outcome-table tbody tr"));
      const found = {
        shown: rows.filter((row) => row.getClientRects().length > 0).length,
        buttons: page.querySelectorAll("button").length,
        filters: page.getElementById("outcome-filters").getClientRects().length,
      };
    """
    found = look_into_frame(html, script, tmp_path, 'sandbox="allow-same-origin"')
    assert found == {"shown": 22, "buttons": 0, "filters": 0}
