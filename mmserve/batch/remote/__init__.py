"""Servers that answer in place of an engine in this process.

    Request -> Fleet -> Board: which server, by its media -> Server -> POST /generate -> answer
                          ^--- Watch: lost servers come back     '--> Uploads: POST /v1/files

Owns: the connections, uploaded files, which servers are up. Called by `cli`; `drift` uses how
servers are called.
"""

from mmserve.batch.remote.addresses import data_address, server_urls
from mmserve.batch.remote.board import ServerCount
from mmserve.batch.remote.calling import called, check, error_of
from mmserve.batch.remote.fleet import Fleet

__all__ = [
    "Fleet",
    "ServerCount",
    "called",
    "check",
    "data_address",
    "error_of",
    "server_urls",
]
