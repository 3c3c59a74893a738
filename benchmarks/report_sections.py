"""What the report page says of each benchmark: a title, a sentence, plots of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report_plots import Bar, Series, bars, lines, stack

__all__ = ["SECTIONS", "Section", "is_ours", "reason_of"]

Row = Mapping[str, Any]
Plots = Callable[[Mapping[str, Any]], list[str]]
_REASONS = ("not_run", "reason", "skipped", "absent")


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark on the page.

    Args:
        name: of its module and its record.
        title: for people.
        about: what is measured.
        plots: figures of a record.
        has_quick: whether it has a small run of its own.
    """

    name: str
    title: str
    about: str
    plots: Plots
    has_quick: bool = True


def reason_of(row: Row) -> str:
    """Why an engine has no result, or "" for a row that has one. Pure."""
    found = (row.get(key) for key in _REASONS)
    return next((str(reason) for reason in found if isinstance(reason, str) and reason), "")


def is_ours(name: str) -> bool:
    """Whether a row is of mmserve or one of its settings. Pure."""
    return name.startswith("mmserve")


def _measured(record: Mapping[str, Any]) -> list[Row]:
    return [row for row in record["rows"] if not reason_of(row)]


def _ceilings(record: Mapping[str, Any]) -> list[str]:
    titles = {
        "read": "Memory read",
        "copy": "Memory copied, both ways counted",
        "matrix": "fp32 matrix products",
    }
    figures = []
    for ceiling, title in titles.items():
        rows = [row for row in record["rows"] if row["ceiling"] == ceiling]
        entries = [
            Bar(
                "1 thread" if row["threads"] == 1 else f"{row['threads']} threads",
                row["median"],
                low=row["least"],
                high=row["most"],
            )
            for row in rows
        ]
        figures.append(bars(title, rows[0]["unit"] if rows else "", entries))
    return figures


def _single(record: Mapping[str, Any]) -> list[str]:
    rows = _measured(record)
    figures = []
    for measured in dict.fromkeys(row["measured"] for row in rows):
        here = [row for row in rows if row["measured"] == measured]
        entries = []
        for row in sorted(here, key=lambda one: -one["tokens_per_s"]):
            share = row.get("share_of_ceiling")
            is_bound = share and (row["bits"] == "fp32" or measured.startswith("decode"))
            entries.append(
                Bar(
                    row["engine"]
                    + ("" if row["bits"] in row["engine"] else f", {row['bits']}"),
                    row["tokens_per_s"],
                    is_ours(row["engine"]),
                    row["slowest"],
                    row["fastest"],
                    goal=row["tokens_per_s"] / share if is_bound else None,
                    note=f"({100 * share:.0f} %)" if is_bound else "",
                )
            )
        what, _, size = measured.partition(", ")
        unit = "stream" if size == "1" else "streams"
        told = f"Decode, {size} {unit}" if what == "decode" else f"Prefill of {size} tokens"
        mark = "; the mark is the ceiling" if any(one.goal for one in entries) else ""
        figures.append(bars(f"{told}: tokens per second{mark}", "", entries))
    return figures


def _rates(column: str, title: str, low: str = "slowest", high: str = "fastest") -> Plots:
    """Bars of one column by engine, fastest first."""

    def plots(record: Mapping[str, Any]) -> list[str]:
        rows = [row for row in _measured(record) if isinstance(row.get(column), (int, float))]
        rows.sort(key=lambda row: -row[column])
        entries = [
            Bar(
                row["engine"],
                row[column],
                is_ours(row["engine"]),
                _bound(row, low),
                _bound(row, high),
            )
            for row in rows
        ]
        return [bars(title, "", entries)] if entries else []

    return plots


def _bound(row: Row, name: str) -> float | None:
    """A range over rounds, from a rate or from the seconds of all programs run. Pure."""
    value = row.get(name)
    if value and name.endswith("_s") and "programs_run" in row:
        return float(row["programs_run"] / value)
    return float(value) if isinstance(value, (int, float)) else None


def _families(record: Mapping[str, Any]) -> list[str]:
    rows = _measured(record)
    figures = []
    for family in dict.fromkeys(row["family"] for row in rows):
        inner = {"rows": [row for row in rows if row["family"] == family]}
        title = f"{str(family).replace('_', ' ')}: programs per second"
        figures += _rates("programs_per_s", title, "slowest_s", "fastest_s")(inner)
    return figures


def _programs(record: Mapping[str, Any]) -> list[str]:
    """Speed of the full system over transformers, by workload, on a logarithmic axis."""
    rates = {
        (row["workload"], row["configuration"]): row["programs_per_s"] for row in record["rows"]
    }
    ratios = {
        workload: rate / rates[workload, "transformers"]
        for (workload, configuration), rate in rates.items()
        if configuration == "full" and (workload, "transformers") in rates
    }
    ordered = sorted(ratios.items(), key=lambda pair: pair[1])
    entries = [
        Bar(name.replace("_", " "), ratio, is_ours=True, goal=6.0, note="x")
        for name, ratio in ordered
    ]
    title = "Programs per second over transformers (logarithmic; the mark is the goal)"
    figures = [bars(title, "", entries, is_log=True)] if entries else []
    return figures + _ablation(rates)


def _ablation(rates: Mapping[tuple[str, str], float]) -> list[str]:
    """Geometric mean of what each configuration reaches of the full system's speed."""
    ratios: dict[str, list[float]] = {}
    for (workload, configuration), rate in rates.items():
        if configuration not in {"full", "transformers"} and (workload, "full") in rates:
            ratios.setdefault(configuration, []).append(rate / rates[workload, "full"])
    entries = [
        Bar(name.replace("_", " "), _mean(several), low=min(several), high=max(several))
        for name, several in ratios.items()
    ]
    title = "Speed with a part removed, over the full system (mean and range of workloads)"
    return [bars(title, "", [Bar("full", 1.0, is_ours=True), *entries])] if entries else []


def _mean(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product


def _no_reuse(record: Mapping[str, Any]) -> list[str]:
    rows = record["rows"]
    parts = {
        "model's arithmetic": "model_share",
        "rest of the runner (layout, sampling)": "rest_of_runner_share",
        "tree and scheduler": "tree_and_scheduler_share",
        "rest of the loop (inbox, text, waiting)": "rest_share",
    }
    means = {
        name: sum(row[column] for row in rows) / len(rows) for name, column in parts.items()
    }
    return [stack("Where the time goes, mean of the rounds", means)]


def _memory(record: Mapping[str, Any]) -> list[str]:
    grown = [row for row in record["rows"] if row["measured"] == "growth"]
    filled = [row for row in record["rows"] if row["measured"] != "growth"]
    figures = []
    if filled:
        points = [
            (row["cached_tokens"], row["bytes_per_token"])
            for row in filled
            if row["bytes_per_token"]
        ]
        goals = {"computed": filled[-1]["computed_bytes"]}
        title = "Bytes of a cached token, as the cache fills"
        series = [Series("measured", points, is_ours=True)]
        figures.append(lines(title, "tokens cached", "bytes", series, goals))
    if grown:
        series = [
            Series(
                label,
                [(row["at_s"] / 60, row[column]) for row in grown],
                is_ours=column == "resident_mib",
            )
            for label, column in (("engine", "resident_mib"), ("children", "children_mib"))
        ]
        figures.append(lines("Memory under load", "minutes", "MiB", series))
    return figures


def _serve_rate(record: Mapping[str, Any]) -> list[str]:
    """p99 of the time to the first token and between tokens against the rate, by engine."""
    rows = [row for row in _measured(record) if "rate_per_s" in row]
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    figures = []
    for column, title, label in (
        ("ttft_p99_ms", "p99 time to the first token against the rate", "ms"),
        ("itl_p99_ms", "p99 time between tokens against the rate", "ms"),
        ("e2e_p99_ms", "p99 time of a whole answer against the rate", "ms"),
    ):
        series = []
        for engine in engines:
            points = sorted(
                (row["rate_per_s"], row[column])
                for row in rows
                if row["engine"] == engine and row.get(column)
            )
            if points:
                series.append(Series(engine, points, is_ours(engine)))
        limit = record.get("limit_ms") if column == "ttft_p99_ms" else None
        goals = {"limit": limit} if limit else {}
        if series:
            x_label = "requests per second"
            figures.append(lines(title, x_label, label, series, goals, is_log=True))
    return figures


def _serve_load(record: Mapping[str, Any]) -> list[str]:
    """Memory as calls end, TTFT against the rate, and latencies beside bad hosts."""
    rows = record["rows"]
    memory = [(row["ended_share"], row["resident_mib"]) for row in rows if "ended_share" in row]
    figures = []
    if memory:
        series = [Series("all processes", memory, is_ours=True)]
        figures.append(lines("Resident memory", "share of calls ended", "MiB", series))
    rates = [row for row in rows if row["measured"] == "rate"]
    if rates:
        series = [
            Series(
                f"p{k}", [(row["rate_per_s"], row[f"ttft_p{k}_ms"]) for row in rates], k == 99
            )
            for k in (50, 99)
        ]
        title = "Time to the first token against the rate"
        goals = {"limit": 1000.0}
        figures.append(lines(title, "requests per second", "ms", series, goals, is_log=True))
    hosts = [row for row in rows if row["measured"] == "hosts"]
    entries = [
        Bar(
            f"round {row['round'] + 1}, {'with' if row['bad_hosts'] else 'without'}",
            row["e2e_p50_ms"],
            is_ours=row["bad_hosts"],
        )
        for row in hosts
    ]
    if entries:
        figures.append(bars("Median answer beside bad picture hosts", "ms", entries))
    return figures


def _nothing(record: Mapping[str, Any]) -> list[str]:
    del record
    return []


SECTIONS: tuple[Section, ...] = (
    Section(
        "ceilings",
        "The machine",
        "What memory and arithmetic can do at most, the best of several routines.",
        _ceilings,
    ),
    Section(
        "image_qa",
        "Questions about pictures",
        "16 pictures with 8 questions each on a seeded LLaVA; all programs at once.",
        _rates("programs_per_s", "Programs per second", "slowest_s", "fastest_s"),
    ),
    Section(
        "video_qa",
        "Questions about clips",
        "10 questions a clip; and a job in two orders, where a tenth of it fits.",
        _rates("programs_per_s", "Programs per second", "slowest_s", "fastest_s"),
    ),
    Section(
        "batch_job",
        "A job of many rows",
        "10,000 shuffled questions about 200 clips on tabletop; then killed twenty times.",
        _nothing,
    ),
    Section(
        "picture_family",
        "Shared pictures",
        "Grids of questions, forks on a picture, growing chats, pictures in many prompts.",
        _families,
    ),
    Section(
        "shared_prefix",
        "Requests on one prefix",
        "SmolLM2-135M: 64 requests share 512 tokens and get 32 tokens of answer each.",
        _rates("requests_per_s", "Requests per second"),
    ),
    Section(
        "programs",
        "Programs",
        "Programs of the kinds in the SGLang paper, on a small model.",
        _programs,
    ),
    Section(
        "single",
        "One model, no programs",
        "SmolLM2-135M beside the machine's ceilings and other engines.",
        _single,
    ),
    Section(
        "no_reuse",
        "Nothing shared",
        "What the engine costs beside the model when no two prompts begin alike.",
        _no_reuse,
    ),
    Section(
        "serve_rate",
        "Open arrivals",
        "Requests arrive by their own clock; each rate is kept for a while.",
        _serve_rate,
    ),
    Section(
        "serve_load",
        "A server under many streams",
        "Questions about pictures beside clients that leave and calls that are wrong.",
        _serve_load,
    ),
    Section(
        "memory",
        "Memory",
        "Bytes of a cached token, and growth under a mixed load.",
        _memory,
    ),
    Section("few_bits", "Weights of 8 and 4 bits", "One matrix product.", _nothing),
    Section("media", "Pictures and clips", "Costs before the model.", _nothing),
    Section("json_jump", "Forced text", "Answers in JSON with and without jumps.", _nothing),
    Section("compiled", "Compiled batches", "What each pass of the compiler gains.", _nothing),
    Section("hit_rate", "Hit rate", "Tokens reused, beside the optimum.", _nothing),
    Section("fairness", "Fairness", "Clients beside a noisy neighbour.", _nothing),
    Section("itl", "Time between tokens", "The pace of prompts beside answers.", _nothing),
    Section("sched_cost", "Scheduler", "Time and memory with very many waiting.", _nothing),
    Section(
        "constrained_cost", "Grammars", "Masks and compiling, beside other libraries.", _nothing
    ),
    Section(
        "json_schemas",
        "JSON Schema",
        "Schemas that are taken, and answers.",
        _nothing,
        has_quick=False,
    ),
    Section(
        "api_speculation",
        "Calls to an API",
        "Calls and input tokens saved.",
        _nothing,
        has_quick=False,
    ),
)
"""In the order in which the suite runs and the page shows them."""
