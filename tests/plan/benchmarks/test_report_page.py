"""The report page: verdicts, plots, a page that needs nothing else, and the suite behind it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite
from benchmarks.report_page import page, read_records, write_page
from benchmarks.report_plots import Bar, Series, bars, lines, number, stack, ticks
from benchmarks.report_sections import SECTIONS, reason_of
from benchmarks.targets import TARGETS, Target, judge

RESULTS = Path(suite.__file__).parent / "results"
LEAST = Target("single", "speed", "speed", 2.0)
MOST = Target("no_reuse", "share", "share", 0.05, "share", is_most=True)
VOID = {"meta", "br", "hr", "img", "input", "link"}


def record(rows: list[dict[str, Any]], **summary: float) -> dict[str, Any]:
    """A record as benchmarks write it."""
    machine = {"processor": "a processor", "cores": 2, "load_1min": 0.5}
    return {
        "repeats": 5,
        "summary": summary,
        "rows": rows,
        "machine": machine,
        "commit": "0123abcd",
        "command": "python -m benchmarks.x",
    }


class Reader(HTMLParser):
    """Checks that tags close in order; gathers attributes and words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember its attributes alone."""
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """It closes what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Remember the words."""
        self.words.append(data)


# Verdicts


@pytest.mark.parametrize(
    ("target", "value", "is_met", "wording"),
    [
        (LEAST, 2.5, True, "met, 25.0 % above"),
        (LEAST, 1.5, False, "missed, 25.0 % below"),
        (LEAST, 2.0, True, "met, at the goal"),
        (LEAST, 0.5, False, "missed, 0.25 times the goal"),
        (MOST, 0.04, True, "met, 20.0 % below"),
        (MOST, 0.06, False, "missed, 20.0 % above"),
        (MOST, 0.01, True, "met, 80.0 % below"),
        (MOST, 0.2, False, "missed, 4 times the goal"),
    ],
)
def test_verdict_says_by_how_much(
    target: Target, value: float, is_met: bool, wording: str
) -> None:
    """A figure is met on its side of the goal, and the distance is told."""
    found = judge(target, {target.key: value})
    assert (found.is_met, found.wording) == (is_met, wording)


def test_a_goal_of_nothing_is_told_by_difference() -> None:
    """Growth of 3 against a goal of 0 is missed by 3, growth of 0 is met."""
    target = Target("memory", "grown", "grown", 0, "count", is_most=True)
    assert judge(target, {"grown": 3}).wording == "missed by 3"
    assert judge(target, {"grown": 0}).wording == "met"


@pytest.mark.parametrize("summary", [None, {}, {"other": 1.0}])
def test_what_has_no_value_is_not_met(summary: dict[str, float] | None) -> None:
    """A record without the key, or none at all, meets nothing."""
    found = judge(LEAST, summary)
    assert (found.is_met, found.wording) == (False, "not measured")


def test_targets_are_of_benchmarks_that_the_suite_runs() -> None:
    """No target names a benchmark that is not run, and none stands twice."""
    keys = [(target.benchmark, target.key) for target in TARGETS]
    assert {name for name, _ in keys} <= set(suite.NAMES)
    assert len(set(keys)) == len(keys)


# Plots


def shapes(figure: str, kind: str) -> list[ElementTree.Element]:
    """Elements of a plot with a class, in order; the plot is well-formed XML."""
    found = re.search(r"<svg.*</svg>", figure, re.S)
    assert found
    tree = ElementTree.fromstring(found[0])
    return [one for one in tree.iter() if kind in one.get("class", "").split()]


def test_bars_are_as_long_as_their_values() -> None:
    """Twice the value is twice the length, and the mark of a goal lies at its own value."""
    figure = bars("speed", "x", [Bar("a", 4.0, is_ours=True, goal=8.0), Bar("b", 2.0)])
    (ours,), (other,), (goal,) = (shapes(figure, k) for k in ("ours", "other", "goal"))
    assert float(ours.get("width")) == pytest.approx(2 * float(other.get("width")), abs=0.2)
    start = re.match(r"M([\d.]+)", goal.get("d"))
    assert float(start[1]) - float(ours.get("x")) == pytest.approx(
        2 * float(ours.get("width")), abs=0.2
    )


def test_bars_on_a_logarithmic_axis_go_by_powers() -> None:
    """From 1 on, 100 is twice as long as 10."""
    figure = bars("speed", "x", [Bar("a", 10.0), Bar("b", 100.0), Bar("c", 1.0)], is_log=True)
    ten, hundred, _ = (float(one.get("width")) for one in shapes(figure, "other"))
    assert hundred == pytest.approx(2 * ten, abs=0.2)


def test_words_in_plots_are_escaped() -> None:
    """A label that looks like a tag stays a label."""
    figure = bars("<b>", "<i>", [Bar("<script>", 1.0)])
    assert "<script>" not in figure
    assert "".join(shapes(figure, "label")[0].itertext()) == "<script>"


def test_line_goes_through_its_points_in_proportion() -> None:
    """Halfway between two points on both axes lies the third."""
    series = [Series("a", [(0, 1.0), (5, 2.0), (10, 3.0)], is_ours=True)]
    figure = lines("grown", "minutes", "MiB", series)
    dots = [one for one in shapes(figure, "line-ours") if one.tag.endswith("circle")]
    xs, ys = ([float(one.get(axis)) for one in dots] for axis in ("cx", "cy"))
    assert xs[1] == pytest.approx((xs[0] + xs[2]) / 2, abs=0.1)
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.1)
    assert ys[0] > ys[2]


def test_parts_of_a_stack_fill_the_width() -> None:
    """Three quarters and one quarter are drawn as wide, and told as such."""
    figure = stack("time", {"model": 3.0, "rest": 1.0})
    wide, narrow = shapes(figure, "fill0")[0], shapes(figure, "fill1")[0]
    assert float(wide.get("width")) == pytest.approx(3 * float(narrow.get("width")))
    assert "rest  25.00 %" in figure


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 0.003), (3, 1000), (-4, 4), (7, 7), (0, 59.9)]
)
def test_ticks_lie_within(low: float, high: float) -> None:
    """At most six round numbers, none outside of the axis."""
    found = ticks(low, high)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 <= one <= high + 1e-9 for one in found)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (12345.6, "12,346"), (999.4, "999"), (1.10, "1.1"), (0.04567, "0.0457")],
)
def test_numbers_have_about_three_digits(value: float, written: str) -> None:
    """Small ones keep digits, large ones lose them."""
    assert number(value) == written


# The page


def test_page_of_the_recorded_results_needs_nothing_else(tmp_path: Path) -> None:
    """All records have a section, tags close, and nothing is fetched from elsewhere."""
    records = read_records(RESULTS)
    reader = Reader(page(records))
    assert reader.open == []
    ids = {value for _, name, value in reader.attributes if name == "id"}
    assert records.keys() - {"suite"} <= ids
    links = [value for _, name, value in reader.attributes if name in {"href", "src"}]
    assert all(link.startswith("#") for link in links)
    assert "url(" not in page(records)


def test_links_lead_to_sections() -> None:
    """Every address on the page is one of its own sections."""
    reader = Reader(page(read_records(RESULTS)))
    ids = {value for _, name, value in reader.attributes if name == "id"}
    assert {value[1:] for _, name, value in reader.attributes if name == "href"} <= ids


def test_target_met_and_missed_stand_beside_results() -> None:
    """The table has the measured figure, the goal and the verdict."""
    summary = {"outside_model_share": 0.02, "tree_and_scheduler_share": 0.006}
    rows = [
        {
            "model_share": 0.98,
            "rest_of_runner_share": 0.01,
            "tree_and_scheduler_share": 0.006,
            "rest_share": 0.004,
        }
    ]
    text = page({"no_reuse": record(rows, **summary)})
    assert "1 met, 1 missed" in text
    assert "2.0 %" in text
    assert "missed, 2 times the goal" in text


def test_an_engine_that_did_not_run_has_its_reason_there() -> None:
    """A row with a reason is told below the plot, and is neither a bar nor a row."""
    rows = [
        {"engine": "mmserve", "requests_per_s": 9.0, "slowest": 8.0, "fastest": 10.0},
        {"engine": "vllm", "not_run": "no environment <here>"},
    ]
    text = page({"shared_prefix": record(rows, requests_per_second=9.0)})
    assert "vllm: no environment &lt;here&gt;" in text
    assert len(re.findall(r'<rect class="(?:ours|other)"', text)) == 1
    assert "Rows (1)<" in text
    assert reason_of(rows[0]) == ""


def test_a_record_of_another_form_still_has_its_rows() -> None:
    """A section whose plot fails says so and shows the table."""
    text = page({"single": record([{"something": 41.5}], x=1.0)})
    assert "no plot of this record" in text
    assert "41.5" in text


def test_a_record_without_a_section_is_shown_at_the_end() -> None:
    """A name that nobody knows gets a section of its own."""
    reader = Reader(page({"zebra_run": record([{"a": 1}], x=1.0)}))
    assert "Zebra run" in reader.words


def test_page_without_records_says_so(tmp_path: Path) -> None:
    """An empty folder gives a page in which all targets are open."""
    text = write_page(tmp_path).read_text()
    assert "There is no record yet" in text
    assert f"0 met, 0 missed, {len(TARGETS)} not measured" in text


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    """Only records are read."""
    (tmp_path / "one.json").write_text(json.dumps(record([], x=1.0)))
    (tmp_path / "two.json").write_text("[1, 2]")
    assert list(read_records(tmp_path)) == ["one"]


def test_sections_have_names_of_their_own() -> None:
    """No benchmark stands on the page twice."""
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)


# The suite


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `benchmarks` of three modules: one good, one that fails, one that hangs."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    text = json.dumps(record([{"engine": "mmserve"}], x=1.0))
    good = f"import sys, pathlib\npathlib.Path(sys.argv[2]).write_text({text!r})\n"
    (folder / "good.py").write_text(good)
    (folder / "bad.py").write_text("raise SystemExit('the reason')\n")
    (folder / "slow.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(suite, "_ROOT", tmp_path)
    monkeypatch.setattr(
        suite.importlib.util,
        "find_spec",
        lambda name: name if (folder / f"{name[11:]}.py").is_file() else None,
    )
    return tmp_path / "results"


def test_suite_goes_on_after_a_failure(scripted: Path) -> None:
    """What fails, hangs or is not there is told with its reason; the others have records."""
    limits = {"good": 30.0, "bad": 30.0, "slow": 0.5, "xenon": 1.0}
    scripted.mkdir()
    outcomes = {
        name: suite.run_one(name, scripted, is_quick=False, limit_s=limit)
        for name, limit in limits.items()
    }
    assert {name: one.status for name, one in outcomes.items()} == {
        "good": "done",
        "bad": "failed",
        "slow": "too long",
        "xenon": "not there",
    }
    assert outcomes["bad"].reason == "the reason"
    assert list(read_records(scripted)) == ["good"]


def test_a_record_stays_when_a_later_run_fails(scripted: Path) -> None:
    """A failure does not take away what an earlier run found."""
    scripted.mkdir()
    (scripted / "bad.json").write_text(json.dumps(record([], kept=1.0)))
    suite.run_one("bad", scripted, is_quick=False, limit_s=30.0)
    assert read_records(scripted)["bad"]["summary"] == {"kept": 1.0}


def test_suite_writes_its_own_record_and_the_page(scripted: Path) -> None:
    """The page tells which benchmark of the run gave no record, and that the run was quick."""
    told = suite.run_suite(["good", "bad"], scripted, is_quick=True, limit_s=30.0)
    assert told.summary["done"] == told.summary["without_result"] == 1
    text = (scripted / "report.html").read_text()
    assert "<code>bad</code>: failed, the reason" in text
    assert "A quick run" in text
    assert json.loads((scripted / "suite.json").read_text())["is_quick"] is True


def test_quick_results_never_stand_in_for_full_ones(
    scripted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick run writes to another folder unless it is told where."""
    asked: list[Path] = []

    def run(names: Any, folder: Path, **rest: Any) -> Any:
        asked.append(folder)
        return suite._record([], "now", is_quick=True)

    monkeypatch.setattr(suite, "run_suite", run)
    monkeypatch.setattr(sys, "argv", ["suite", "--quick"])
    with pytest.raises(SystemExit):
        suite.main()
    assert asked == [suite.QUICK_RESULTS]
    assert suite.RESULTS not in asked
