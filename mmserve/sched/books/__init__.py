"""What is written down of sequences as they start and end: hits and misses, waits, the optimum.

Nothing here decides anything.
"""

from mmserve.sched.books.accounts import Waits
from mmserve.sched.books.books import Books
from mmserve.sched.books.optimum import ServedRequest, optimal_hits
from mmserve.sched.books.recent import RecentShare
from mmserve.sched.books.report import SchedReport

__all__ = ["Books", "RecentShare", "SchedReport", "ServedRequest", "Waits", "optimal_hits"]
