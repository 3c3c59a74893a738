"""What a run would do, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmserve.batch.asker import Asker
from mmserve.batch.forecast.measure import Measured, measure
from mmserve.batch.forecast.probe import Probe, probe
from mmserve.batch.forecast.survey import Survey
from mmserve.batch.looking import Renderer
from mmserve.batch.settings import AskSettings
from mmserve.core import BackendFailed

__all__ = ["Forecast", "make_forecast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A plan's counts, and what was found out about its cost.

    Args:
        survey: counts.
        measured: tokens; None if nobody could look at prompts, then `not_measured` says why.
        probe: what was timed; None if no question was answered.
        not_measured: a sentence.
    """

    survey: Survey
    measured: Measured | None
    probe: Probe | None
    not_measured: str | None = None

    @property
    def expected_s(self) -> float | None:
        """Seconds that the run will take, about; None if unknown."""
        if self.probe is None:
            return None
        return self.probe.seconds(self.survey.groups, self.survey.answers)

    def fields(self) -> dict[str, Any]:
        """All of it as JSON has it. Pure."""
        survey, measured, timed = self.survey, self.measured, self.probe
        faults = [{"line": fault.line, "message": fault.message} for fault in survey.faults]
        told: dict[str, Any] = {
            "rows": survey.rows,
            "questions": survey.questions,
            "answers": survey.answers,
            "groups": survey.groups,
            "clips": survey.clips,
            "pictures": survey.pictures,
            "faulty_rows": survey.num_faults,
            "faults": faults,
            "tokens": None,
            "expected_s": None if timed is None else round(self.expected_s or 0.0, 3),
            "probe": None,
        }
        if measured is not None:
            told["tokens"] = {
                "prompt_tokens": measured.prompt_tokens,
                "least_tokens": measured.least_tokens,
                "frames": measured.frames,
                "is_exact": measured.is_exact,
                "groups": measured.groups,
                "questions": measured.questions,
                "refused": measured.num_refused,
            }
        if timed is not None:
            told["probe"] = {
                "questions": timed.questions,
                "first_s": timed.first_s,
                "further_s": timed.further_s,
                "prefill_tokens_per_s": timed.prefill_rate,
                "answer_tokens_per_s": timed.answer_rate,
            }
        return told


def make_forecast(
    survey: Survey,
    asker: Asker,
    renderer: Renderer,
    settings: AskSettings,
    concurrency: int,
) -> Forecast:
    """Look at prompts of the kept groups and time a few questions. Cost: see both."""
    measured, reason = None, None
    try:
        measured = measure(renderer, survey, settings)
    except BackendFailed as error:
        reason = f"the server shows no prompts ({error.message})"
    timed = probe(asker, survey.kept, settings, concurrency)
    return Forecast(survey=survey, measured=measured, probe=timed, not_measured=reason)
