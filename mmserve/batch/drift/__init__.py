r"""Drift: the same prompts asked on two sides, and where their answers part.

Owns: the form of drift's rows, how an OpenAI-compatible endpoint is asked so that two answers
can be compared, what counts as a flip, and the drawing of a report. Called by `cli`.

    rows.jsonl -> parse_ask -> Ask --ChatSide A--> Said \\
                                   --ChatSide B--> Said -> compare -> Pair -> Report

Everything goes over the wire, settings of our own too: what is compared is what a client gets.
"""

from mmserve.batch.drift.asks import Ask, parse_ask
from mmserve.batch.drift.compare import Difference, Pair, compare
from mmserve.batch.drift.plot import draw_report
from mmserve.batch.drift.report import Report, TaskDrift, report_json
from mmserve.batch.drift.run import ask_all, pair_up, read_asks
from mmserve.batch.drift.said import Said, Token, read_answer
from mmserve.batch.drift.side import ChatSide, Manner

__all__ = [
    "Ask",
    "ChatSide",
    "Difference",
    "Manner",
    "Pair",
    "Report",
    "Said",
    "TaskDrift",
    "Token",
    "ask_all",
    "compare",
    "draw_report",
    "pair_up",
    "parse_ask",
    "read_answer",
    "read_asks",
    "report_json",
]
