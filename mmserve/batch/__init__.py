"""The video and picture question batch tool: a file of rows in, a file of records out.

Owns: the form of rows and records, the order of the work, the output file and its lock,
taking up a killed run again. Knows the engine only as `core.Client`, a server as `Endpoint`.
Called by `cli`.

    rows -> JobIndex -> Plan -> request_of -> Asker -> Record -> JobIndex, then answers.jsonl
            [answers.jsonl.progress]                             [sorted when all is done]
"""

from mmserve.batch.answering import BatchSettings
from mmserve.batch.asker import Asker, AskTicket
from mmserve.batch.asks import AskSettings, media_source, request_of
from mmserve.batch.endpoint import Endpoint, EndpointTicket
from mmserve.batch.faults import Backoff
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
from mmserve.batch.rows import Row, RowFault, numbered_lines, parse_row
from mmserve.batch.runner import BatchRun, answer_file, progress_path
from mmserve.batch.summary import Summary, Tally

__all__ = [
    "Answer",
    "AskSettings",
    "AskTicket",
    "Asker",
    "Backoff",
    "BatchRun",
    "BatchSettings",
    "Endpoint",
    "EndpointTicket",
    "OutputFile",
    "OutputMode",
    "Record",
    "Row",
    "RowFault",
    "Summary",
    "Tally",
    "answer_file",
    "answered_record",
    "fault_record",
    "media_source",
    "numbered_lines",
    "parse_row",
    "progress_path",
    "read_answer",
    "record_line",
    "refused_record",
    "request_of",
]
