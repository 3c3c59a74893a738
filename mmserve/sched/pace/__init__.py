"""What steps cost and how long answers get, learnt from those that ran.

steps -> LinearCost -> StepPace -> what the next step may take
ended answers -> GrowthForecast -> slots to keep for those that run
"""

from mmserve.sched.pace.forecast import GrowthForecast
from mmserve.sched.pace.pace import LONE_TOKENS, StepBudget, StepPace

__all__ = ["LONE_TOKENS", "GrowthForecast", "StepBudget", "StepPace"]
