"""The video and picture question batch tool: a file of rows in, a file of records out.

Owns: the form of rows and records, the output file's lock, taking up a killed run again.
Knows the engine only as `core.Client`, servers as a `Fleet`. Called by `cli`.

    rows.jsonl -> parse_row -> request_of -> Asker -> Record -> OutputFile -> answers.jsonl
"""

from mmserve.batch.answering import BatchSettings
from mmserve.batch.asker import Asker, AskTicket
from mmserve.batch.asks import AskSettings, media_source, request_of
from mmserve.batch.objects import Spool, StoreSettings
from mmserve.batch.output import KeptRecord, OutputFile, OutputMode
from mmserve.batch.records import (
    Answer,
    Record,
    answered_record,
    fault_record,
    read_answer,
    record_line,
    refused_record,
)
from mmserve.batch.remote import Fleet, ServerCount, server_urls
from mmserve.batch.rows import Row, RowFault, numbered_lines, parse_row
from mmserve.batch.runner import BatchRun, answer_file
from mmserve.batch.summary import Summary, Tally
from mmserve.batch.whole import WholeAnswer, WholeTicket

__all__ = [
    "Answer",
    "AskSettings",
    "AskTicket",
    "Asker",
    "BatchRun",
    "BatchSettings",
    "Fleet",
    "KeptRecord",
    "OutputFile",
    "OutputMode",
    "Record",
    "Row",
    "RowFault",
    "ServerCount",
    "Spool",
    "StoreSettings",
    "Summary",
    "Tally",
    "WholeAnswer",
    "WholeTicket",
    "answer_file",
    "answered_record",
    "fault_record",
    "media_source",
    "numbered_lines",
    "parse_row",
    "read_answer",
    "record_line",
    "refused_record",
    "request_of",
    "server_urls",
]
