"""One page of all records of a folder: targets, ceilings, plots and rows. HTML, no network.

`python -m benchmarks.report_page FOLDER` writes FOLDER/report.html. The page needs nothing
beside itself, is light or dark as the reader's system is, and prints in light with every table
open.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.report_plots import number
from benchmarks.report_sections import SECTIONS, Section, is_ours, reason_of
from benchmarks.targets import TARGETS, Judgement, judge

__all__ = ["page", "read_records", "write_page"]

SUITE = "suite"
"""Name of the record in which the suite tells of its own run."""
_MOST_ROWS = 80
_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d232a;--pale:#59636e;--rule:#d5dae0;
--soft:#f3f5f7;--ours:#0b6bcb;--other:#9aa5b1;--goal:#b3261e;--met:#14713a;--missed:#a8271d;
--c0:#6b7c93;--c1:#b4690e;--c2:#7a4fb5;--c3:#177e6b;--c4:#ad3f7a;--c5:#7d6a00;--c6:#4a7d1f}
@media (prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e6e9ed;--pale:#9aa5b1;
--rule:#333b45;--soft:#1c222a;--ours:#5aa9f5;--other:#667280;--goal:#ff8a80;--met:#6fd394;
--missed:#ff8a80;--c0:#93a5bd;--c1:#eda45a;--c2:#b99bea;--c3:#5cc9b3;--c4:#ec8fbd;--c5:#d4bf4a;
--c6:#9bd06b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:20px;margin:44px 0 2px;padding-top:12px;
border-top:1px solid var(--rule)}h3{font-size:16px;margin:26px 0 6px}
p{margin:4px 0 10px}.pale,.facts{color:var(--pale)}.facts{font-size:13px}
nav{display:flex;flex-wrap:wrap;gap:2px 14px}a{color:var(--ours)}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;width:100%}
.wide{overflow-x:auto;margin:6px 0 14px}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--rule);
vertical-align:top}th{font-weight:600;color:var(--pale)}
td.n,th.n{text-align:right;white-space:nowrap}tr.ours td:first-child{font-weight:600}
tr.group td{padding-top:12px;font-weight:600;border-bottom:1px solid var(--ink)}
.met{color:var(--met);font-weight:600}.missed{color:var(--missed);font-weight:600}
.open{color:var(--pale)}code{font:12.5px ui-monospace,Menlo,Consolas,monospace}
summary{cursor:pointer;color:var(--ours);font-size:13.5px;margin:4px 0}
.tally{font-size:17px;margin:14px 0 6px}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));
gap:18px 28px;margin:10px 0}figure{margin:0;min-width:0}
figcaption{font-size:13.5px;font-weight:600;margin-bottom:4px}
svg{width:100%;height:auto;display:block;overflow:visible}
svg text{font-size:13px;fill:var(--ink)}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .axis{fill:var(--pale);font-size:12px}svg .value{fill:var(--pale)}
svg .strong{font-weight:600;fill:var(--ink)}
svg .ours{fill:var(--ours)}svg .other{fill:var(--other)}
svg .range{stroke:var(--ink);stroke-width:1.2;fill:none}
svg .goal{stroke:var(--goal);stroke-width:2;fill:none;stroke-dasharray:5 3}
svg .grid{stroke:var(--rule);fill:none}
svg path.line-ours{stroke:var(--ours);stroke-width:2.6;fill:none}
svg circle.line-ours{fill:var(--ours)}
"""
_STYLE += "".join(
    f"svg .fill{i}{{fill:var(--{'ours' if i == 0 else f'c{i}'})}}"
    f"svg path.line{i}{{stroke:var(--c{i});stroke-width:1.8;fill:none}}"
    f"svg circle.line{i}{{fill:var(--c{i})}}\n"
    for i in range(7)
)
_STYLE += """@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--pale:#444;
--rule:#bbb;--soft:#fff;--ours:#0b6bcb;--other:#9aa5b1;--goal:#b3261e;--met:#14713a;
--missed:#a8271d;--c0:#6b7c93;--c1:#b4690e;--c2:#7a4fb5;--c3:#177e6b;--c4:#ad3f7a;--c5:#7d6a00;
--c6:#4a7d1f}main{max-width:none;padding:0}nav{display:none}body{font-size:11pt}
table{font-size:8.5pt}.wide{overflow:visible}figure,tr{break-inside:avoid}
h2,h3{break-after:avoid}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
_SCRIPT = (
    "addEventListener('beforeprint',()=>document.querySelectorAll('details')"
    ".forEach(d=>{d.open=true}))"
)

Records = Mapping[str, Mapping[str, Any]]


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of a folder by name; other files of it are left alone. Pure."""
    records = {}
    for path in sorted(folder.glob("*.json")):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict) and {"summary", "rows", "machine"} <= value.keys():
            records[path.stem] = value
    return records


def page(records: Records) -> str:
    """The whole page of some records. Pure."""
    known = [section for section in SECTIONS if section.name in records]
    names = {section.name for section in SECTIONS} | {SUITE}
    rest = [
        Section(name, name.replace("_", " ").capitalize(), "", lambda _: [])
        for name in records
        if name not in names
    ]
    sections = [*known, *rest]
    links = "".join(f'<a href="#{one.name}">{escape(one.title)}</a>' for one in sections)
    body = [
        "<h1>mmserve: measured side by side</h1>",
        _head(records),
        f"<nav>{links}</nav>",
        _targets(records),
        _failures(records),
        *(_section(one, records[one.name]) for one in sections),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>mmserve: benchmarks</title><style>{_STYLE}</style></head>\n"
        f"<body><main>{''.join(body)}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def write_page(folder: Path) -> Path:
    """Write FOLDER/report.html of the folder's records; returns its path."""
    target = folder / "report.html"
    target.write_text(page(read_records(folder)), encoding="utf-8")
    return target


# The top of the page


def _head(records: Records) -> str:
    """Machine, commit and ceilings in a few lines. Pure."""
    source = records.get(SUITE) or next(iter(records.values()), None)
    if source is None:
        return "<p>There is no record yet.</p>"
    machine = source["machine"]
    words = [f"{machine.get('processor', '?')}, {machine.get('cores', '?')} cores"]
    words += [
        f"{name} {machine[name]}" for name in ("torch", "transformers") if name in machine
    ]
    words.append(f"commit {source['commit']}")
    suite = records.get(SUITE)
    if suite is not None:
        words.append(f"begun {suite['begun']}" + (", quick run" if suite["is_quick"] else ""))
    ceilings = records.get("ceilings", {}).get("summary", {})
    reached = [
        f"{label} {ceilings[key]:.3g} {unit}"
        for key, label, unit in (
            ("read_gb_per_s_all_threads", "read", "GB/s"),
            ("copy_gb_per_s_all_threads", "copy", "GB/s"),
            ("matrix_gflop_per_s_all_threads", "fp32 products", "GFLOP/s"),
        )
        if key in ceilings
    ]
    lines = [f'<p class="pale">{escape(" · ".join(words))}</p>']
    if reached:
        told = escape(" · ".join(reached))
        lines.append(f'<p class="pale">Ceilings, all threads: {told}</p>')
    if suite is not None and suite["is_quick"]:
        lines.append(
            "<p><strong>A quick run:</strong> few rounds of small loads. It shows that "
            "everything runs; its figures are no results.</p>"
        )
    return "".join(lines)


def _targets(records: Records) -> str:
    """All targets in a table, with a tally. Pure."""
    judged = [
        judge(target, records.get(target.benchmark, {}).get("summary")) for target in TARGETS
    ]
    num_met = sum(one.is_met for one in judged)
    num_open = sum(one.value is None for one in judged)
    tally = f"{num_met} met, {len(judged) - num_met - num_open} missed"
    tally += f", {num_open} not measured" if num_open else ""
    rows, last = [], ""
    titles = {section.name: section.title for section in SECTIONS}
    for one in judged:
        name = one.target.benchmark
        if name != last:
            rows.append(
                f'<tr class="group"><td colspan="4">{_link(name, titles, records)}</td></tr>'
            )
            last = name
        rows.append(_judged(one))
    return (
        f'<h2 id="targets">Targets</h2><p class="tally">{tally}</p>'
        '<div class="wide"><table><thead><tr><th>figure</th><th class="n">wanted</th>'
        '<th class="n">measured</th><th>verdict</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _link(name: str, titles: Mapping[str, str], records: Records) -> str:
    title = escape(titles.get(name, name))
    return f'<a href="#{name}">{title}</a>' if name in records else title


def _judged(one: Judgement) -> str:
    kind = "open" if one.value is None else "met" if one.is_met else "missed"
    mark = {"open": "·", "met": "✓", "missed": "✗"}[kind]
    measured = "" if one.value is None else one.target.written(one.value)
    return (
        f"<tr><td>{escape(one.target.wording)}</td>"
        f'<td class="n">{escape(one.target.written_goal)}</td>'
        f'<td class="n">{escape(measured)}</td>'
        f'<td class="{kind}">{mark} {escape(one.wording)}</td></tr>'
    )


def _failures(records: Records) -> str:
    """Benchmarks of the suite's run that gave no record. Pure."""
    suite = records.get(SUITE)
    bad = [] if suite is None else [row for row in suite["rows"] if row["status"] != "done"]
    if not bad:
        return ""
    items = "".join(
        f"<li><code>{escape(row['benchmark'])}</code>: {escape(row['status'])}"
        f"{escape(', ' + row['reason'] if row['reason'] else '')}</li>"
        for row in bad
    )
    return f"<h3>Without a result in this run</h3><ul>{items}</ul>"


# One benchmark


def _section(section: Section, record: Mapping[str, Any]) -> str:
    try:
        figures = section.plots(record)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        figures = []  # a record of an older form still has its rows below
        told = f"no plot of this record: {type(error).__name__} {error}"
        plots = f'<p class="facts">{escape(told)}</p>'
    else:
        plots = f'<div class="figures">{"".join(figures)}</div>' if figures else ""
    measured = [row for row in record["rows"] if not reason_of(row)]
    return (
        f'<h2 id="{section.name}">{escape(section.title)}</h2>'
        f"<p>{escape(section.about)}</p>{_facts(record)}{plots}"
        f"{_absent(record['rows'])}"
        f"<details><summary>Summary ({len(record['summary'])})</summary>"
        f"{_summary(record['summary'])}</details>"
        f"<details><summary>Rows ({len(measured)})</summary>{_rows(measured)}</details>"
    )


def _facts(record: Mapping[str, Any]) -> str:
    rounds = record["repeats"]
    busy = [
        row["busy_elsewhere_cores"]
        for row in record["rows"]
        if isinstance(row.get("busy_elsewhere_cores"), (int, float))
    ]
    words = [
        f"<code>{escape(record['command'])}</code>",
        f"commit {escape(str(record['commit']))}",
        "1 round" if rounds == 1 else f"median of {rounds} rounds",
        f"load {record['machine'].get('load_1min', '?')}",
    ]
    if busy:
        words.append(f"others kept up to {max(busy):g} cores busy")
    return f'<p class="facts">{" · ".join(words)}</p>'


def _absent(rows: Iterable[Mapping[str, Any]]) -> str:
    reasons = {str(row.get("engine", "?")): reason_of(row) for row in rows if reason_of(row)}
    items = "".join(
        f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in reasons.items()
    )
    return f'<p class="facts">Not run:</p><ul class="facts">{items}</ul>' if items else ""


def _summary(summary: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><td><code>{escape(key)}</code></td><td class="n">{_cell(value)}</td></tr>'
        for key, value in summary.items()
    )
    return f'<div class="wide"><table><tbody>{rows}</tbody></table></div>'


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table, at most so many; nested values are left to the record. Pure."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if not any(isinstance(row.get(name), (dict, list)) for row in rows)
    ]
    numeric = {n for n in names if any(isinstance(row.get(n), (int, float)) for row in rows)}
    head = "".join(
        _tagged("th", escape(name.replace("_", " ")), is_number=name in numeric)
        for name in names
    )
    lines = []
    for row in rows[:_MOST_ROWS]:
        kind = ' class="ours"' if is_ours(str(row.get("engine", ""))) else ""
        cells = "".join(
            _tagged("td", _cell(row.get(name, "")), is_number=name in numeric) for name in names
        )
        lines.append(f"<tr{kind}>{cells}</tr>")
    more = len(rows) - _MOST_ROWS
    rest = f'<p class="facts">{more} rows more in the record</p>' if more > 0 else ""
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{rest}"
    )


def _tagged(tag: str, content: str, *, is_number: bool) -> str:
    kind = ' class="n"' if is_number else ""
    return f"<{tag}{kind}>{content}</{tag}>"


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return escape(number(float(value)))
    return escape(str(value))


def main() -> None:
    """Parse flags, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(__file__).parent / "results"
    )
    print(write_page(parser.parse_args().folder))


if __name__ == "__main__":
    main()
