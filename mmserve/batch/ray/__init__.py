"""A batch job over a Ray cluster: groups of rows out, records back, the job stays here.

    plan -> groups -> blocks of some -> ray.data -> GroupWorker: one engine, the usual run
                                                        |
    index <- records, each once <- batches, as they come +   a killed worker's block runs again

Owns: the data set, what goes over the wire, which resources a worker takes. Called by `cli`.
Ray is an extra; only `cluster.py` imports it.
"""

from mmserve.batch.ray.cluster import Cluster, RaySettings, answered_groups
from mmserve.batch.ray.wire import GroupRow

__all__ = ["Cluster", "GroupRow", "RaySettings", "answered_groups"]
