"""Clips and pictures in object stores, through fsspec: fetched once, asked about as files.

    s3://bucket/a.mp4 -> Permits -> ObjectDisk -> Stores -> /tmp/../1f-1.mp4 -> Asker

Owns: which addresses are permitted (none by default), the files on disk, their limits. Called
by `cli`. fsspec is an extra, and what a store needs beside it is the user's choice.
"""

from mmserve.batch.objects.permits import ObjectAddress, Permits, is_object
from mmserve.batch.objects.spool import Spool, StoreSettings

__all__ = ["ObjectAddress", "Permits", "Spool", "StoreSettings", "is_object"]
