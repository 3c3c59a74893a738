"""A job on disk: its rows in the order of the work, its records as they are written.

Owns: `<output>.progress`, an SQLite file of one writer; the order of the plan; the count of the
least tokens. Knows nothing of who answers. Called by `batch.runner` and `batch.answering`.

    rows -> survey -> JobIndex: rows, records -> plan() -> Planned, group by group
                              ^ write(records)            -> lines(), in the input's order
"""

from mmserve.batch.job.bound import LeastTokens, TokenTrie, told_apart
from mmserve.batch.job.index import JobIndex, RowEntry, disk_told
from mmserve.batch.job.kept import Kept, asked_digest, kept_record
from mmserve.batch.job.plan import Plan, Planned
from mmserve.batch.job.route import Route, media_of, medium_id, route_of
from mmserve.batch.job.survey import Input, survey

__all__ = [
    "Input",
    "JobIndex",
    "Kept",
    "LeastTokens",
    "Plan",
    "Planned",
    "Route",
    "RowEntry",
    "TokenTrie",
    "asked_digest",
    "disk_told",
    "kept_record",
    "media_of",
    "medium_id",
    "route_of",
    "survey",
    "told_apart",
]
