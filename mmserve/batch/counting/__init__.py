"""What a run adds up about its records while it works, in memory that does not grow with rows.

    Record -> Counted.add -> Sketch (times by stage), Course (over time), Faults, Samples

Owns: nothing but numbers and a few examples. Called by `batch.summary`, read by `batch.report`.
"""

from mmserve.batch.counting.counted import STAGES, Counted
from mmserve.batch.counting.course import Course, Stretch
from mmserve.batch.counting.faults import FaultKind, Faults
from mmserve.batch.counting.samples import Sample, Samples
from mmserve.batch.counting.sketch import Sketch

__all__ = [
    "STAGES",
    "Counted",
    "Course",
    "FaultKind",
    "Faults",
    "Sample",
    "Samples",
    "Sketch",
    "Stretch",
]
