"""The video and picture question batch tool: a file of rows in, a file of records out.

Owns: the form of rows and records, the order of the work, the output file and its lock,
taking up a killed run again. Knows the engine only as `core.Client`, servers as a `Fleet`.
Called by `cli`.

    rows -> Rows -> JobIndex -> Plan -> request_of -> Asker -> Record -> JobIndex, then answers
            [answers.jsonl.progress]                                     [sorted at the end]
"""

from mmserve.batch.answering import BatchSettings
from mmserve.batch.asker import Asker, AskTicket
from mmserve.batch.asks import media_source, request_of
from mmserve.batch.elsewhere import Elsewhere
from mmserve.batch.faults import Backoff
from mmserve.batch.formats import RawRow, is_table, numbered_lines, write_table
from mmserve.batch.objects import Spool, StoreSettings
from mmserve.batch.output import OutputFile, OutputMode
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
from mmserve.batch.row import Row, RowFault
from mmserve.batch.rows import Rows, parse_row
from mmserve.batch.runner import BatchRun, answer_file, progress_path
from mmserve.batch.settings import AskSettings, RowSettings
from mmserve.batch.summary import Summary, Tally, duration_told
from mmserve.batch.whole import WholeAnswer, WholeTicket

__all__ = [
    "Answer",
    "AskSettings",
    "AskTicket",
    "Asker",
    "Backoff",
    "BatchRun",
    "BatchSettings",
    "Elsewhere",
    "Fleet",
    "OutputFile",
    "OutputMode",
    "RawRow",
    "Record",
    "Row",
    "RowFault",
    "RowSettings",
    "Rows",
    "ServerCount",
    "Spool",
    "StoreSettings",
    "Summary",
    "Tally",
    "WholeAnswer",
    "WholeTicket",
    "answer_file",
    "answered_record",
    "duration_told",
    "fault_record",
    "is_table",
    "media_source",
    "numbered_lines",
    "parse_row",
    "progress_path",
    "read_answer",
    "record_line",
    "refused_record",
    "request_of",
    "server_urls",
    "write_table",
]
