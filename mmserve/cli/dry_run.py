"""`mmserve video-qa --dry-run`: what a run would do, told on stdout."""

from __future__ import annotations

from mmserve.batch import duration_told
from mmserve.batch.forecast import Forecast, Measured, Probe
from mmserve.cli import console
from mmserve.cli.console import Column

__all__ = ["say_forecast"]

_MAX_SHOWN = 10


def say_forecast(forecast: Forecast) -> None:
    """A table of the plan, its faults, and how it was found out."""
    survey, measured = forecast.survey, forecast.measured
    rows = [
        ["rows", f"{survey.rows:,}", _faulty(survey.num_faults)],
        ["questions", f"{survey.questions:,}", _answers(forecast)],
        ["clips", f"{survey.clips:,}", "different ones"],
        ["pictures", f"{survey.pictures:,}", "in different sets"],
    ]
    if measured is not None:
        rows += _token_rows(measured)
    if forecast.expected_s is not None:
        rows.append(["expected time", _duration(forecast.expected_s), "see below"])
    console.say_table((Column(""), Column("count", is_number=True), Column("")), rows)
    for line in _remarks(forecast):
        console.say(line)


def _faulty(num_faults: int) -> str:
    return f"and {num_faults:,} faulty, see below" if num_faults else "none faulty"


def _answers(forecast: Forecast) -> str:
    survey = forecast.survey
    return f"{survey.answers:,} answers" if survey.answers != survey.questions else ""


def _token_rows(measured: Measured) -> list[list[str]]:
    about = "" if measured.is_exact else "about "
    prompt_tokens = measured.prompt_tokens
    share = 1 - measured.least_tokens / prompt_tokens if prompt_tokens else 0.0
    rows = [["frames", f"{about}{measured.frames:,}", "of clips, each once"]]
    rows.append(["prompt tokens", f"{about}{prompt_tokens:,}", "without sharing"])
    told = f"with sharing; {share:.0%} from cache at best"
    rows.append(["to compute", f"{about}{measured.least_tokens:,}", told])
    return rows


def _remarks(forecast: Forecast) -> list[str]:
    survey, measured = forecast.survey, forecast.measured
    told = [_measured(forecast, measured)]
    told.append(_timed(forecast.probe))
    if survey.conversations:
        count = f"{survey.conversations:,}"
        told.append(f"Of {count} conversations, the turns before a question are not counted.")
    if survey.num_faults:
        told += ["", f"Faulty rows, each would be an error record ({survey.num_faults:,}):"]
        told += [f"  {fault.message}" for fault in survey.faults[:_MAX_SHOWN]]
        if survey.num_faults > _MAX_SHOWN:
            told.append(f"  and {survey.num_faults - _MAX_SHOWN:,} more")
    if measured is not None and measured.num_refused:
        count = f"{measured.num_refused:,} of those looked at"
        told += ["", f"Questions that would be refused ({count}):"]
        told += [f"  line {line}: {message}" for line, message in measured.refused]
    return [" ".join(line.split("\n")) for line in told]


def _measured(forecast: Forecast, measured: Measured | None) -> str:
    if measured is None:
        return f"Tokens are not known: {forecast.not_measured}."
    looked = f"{measured.questions:,} questions about {measured.groups:,} clips or sets"
    if measured.is_exact:
        return f"Tokens are exact: all {looked} of pictures were looked at."
    return f"Tokens are scaled from {looked} of pictures, spread evenly over the plan."


def _timed(probe: Probe | None) -> str:
    if probe is None:
        return "The time is not known: no question was answered."
    told = f"The time follows from {probe.questions} real questions (their answers are dropped)"
    told += f": {probe.first_s:.3g} s for the first about a clip or set of pictures"
    if probe.further_s is not None:
        told += f", {probe.further_s:.3g} s for each further one"
    if probe.prefill_rate is not None:
        told += f"; alone, {probe.prefill_rate:,.0f} prompt tokens/s"
        if probe.answer_rate is not None:
            told += f" and {probe.answer_rate:,.0f} generated/s"
    return told + "."


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 60 else duration_told(seconds)
