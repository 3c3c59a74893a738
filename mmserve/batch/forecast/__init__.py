"""What a run would do, without doing it: counts, tokens with and without sharing, time.

    planned -> Survey (counts, a few groups) -> Measured (prompts looked at)
                                                -> Probe (a few questions asked) -> Forecast

Writes nothing. Called by `cli`.
"""

from mmserve.batch.forecast.forecast import Forecast, make_forecast
from mmserve.batch.forecast.measure import Measured, measure
from mmserve.batch.forecast.planned import planned
from mmserve.batch.forecast.probe import Probe, probe
from mmserve.batch.forecast.sharing import least_tokens, prompt_keys
from mmserve.batch.forecast.survey import KeptGroup, Survey

__all__ = [
    "Forecast",
    "KeptGroup",
    "Measured",
    "Probe",
    "Survey",
    "least_tokens",
    "make_forecast",
    "measure",
    "planned",
    "probe",
    "prompt_keys",
]
