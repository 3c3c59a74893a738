"""Reading from object stores through fsspec, and what goes wrong there as errors of ours.

Errors that a second try cannot mend are MediaRefused, the row's own; all others BackendFailed.
Credentials are the store's package's business: it finds them as it always does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmserve.batch.objects.permits import ObjectAddress
from mmserve.core import BackendFailed, BadRequest, MediaRefused, MissingExtra, MmserveError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Stores", "check_stores"]

_CHUNK_BYTES = 1 << 20
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "oss": "ossfs",
    "hf": "huggingface_hub",
}
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ClientAuthenticationError")
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def check_stores(schemes: Iterable[str]) -> None:
    """Raise MissingExtra if a package is not installed, BadRequest for an unknown scheme."""
    for scheme in schemes:
        _kind_of(scheme)


class Stores:
    """Opens stores and reads objects of them. Safe from any thread.

    A store that can be shared by threads is opened once; fsspec itself would open one a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, str], AbstractFileSystem] = {}

    def download(
        self,
        address: ObjectAddress,
        target: Path,
        *,
        limit_bytes: int,
        deadline_s: float,
        is_over: Callable[[], bool] = lambda: False,
    ) -> int:
        """Write an object to a new file; its bytes. Cost: one reading of the object.

        Args:
            address: permitted.
            target: the file; it may be half there if an error is raised.
            limit_bytes: most bytes.
            deadline_s: time of `time.monotonic` by which it must be there, seen at each MiB.
            is_over: asked likewise; then it stops.

        Raises MediaRefused if the object is missing, forbidden, empty or too large;
        BackendFailed for what may pass, as a store that does not answer.
        """
        try:
            store, path = self._opened(address)
            _check_size(address, store.info(path).get("size"), limit_bytes)
            with store.open(path, "rb") as source, target.open("xb") as file:
                num_bytes = 0
                while chunk := source.read(_CHUNK_BYTES):
                    num_bytes += len(chunk)
                    _check_size(address, num_bytes, limit_bytes)
                    if is_over() or time.monotonic() > deadline_s:
                        raise TimeoutError("the time for one object is over")
                    file.write(chunk)
        except MmserveError:
            raise
        except Exception as error:  # stores raise what their packages like
            raise _error_of(address, error) from error
        if not num_bytes:
            raise MediaRefused(f"{address}: the object is empty", reason="undecodable")
        return num_bytes

    def _opened(self, address: ObjectAddress) -> tuple[AbstractFileSystem, str]:
        kind = _kind_of(address.scheme)
        text = str(address)
        options = kind._get_kwargs_from_urls(text)
        path = str(kind._strip_protocol(text))
        if not kind.async_impl:
            return kind(**options, skip_instance_cache=True), path
        key = (address.scheme, repr(sorted(options.items())))
        with self._lock:
            if key not in self._shared:
                self._shared[key] = kind(**options)
            return self._shared[key], path


def _check_size(address: ObjectAddress, num_bytes: int | None, limit_bytes: int) -> None:
    if num_bytes is not None and num_bytes > limit_bytes:
        raise MediaRefused(
            f"{address} has {num_bytes:,} bytes or more, the limit is {limit_bytes:,}",
            hint="--max-object-bytes raises it",
            reason="too_large",
        )


def _kind_of(scheme: str) -> Any:  # noqa: ANN401 - a class of an untyped package
    try:
        from fsspec.registry import (  # noqa: PLC0415 - an optional package
            get_filesystem_class,
        )
    except ImportError:
        hint = _hint(scheme)
        message = "objects in stores need the package fsspec"
        raise MissingExtra(message, hint=hint, package="fsspec", extra="objects") from None
    try:
        return get_filesystem_class(scheme)
    except ImportError as error:
        package = _PACKAGES.get(scheme, "")
        message = f"{scheme}:// needs a package of its own: {error}"
        raise MissingExtra(
            message, hint=_hint(scheme), package=package, extra="objects"
        ) from None
    except ValueError:
        message = f"allow_store: {scheme}:// is no store that fsspec knows"
        raise BadRequest(message, field="allow_store", reason="scheme") from None


def _hint(scheme: str) -> str:
    package = _PACKAGES.get(scheme)
    return 'pip install "mmserve[objects]"' + (f" {package}" if package else "")


def _error_of(address: ObjectAddress, error: Exception) -> MmserveError:
    """The error that the store's own stands for. Pure."""
    name = type(error).__name__
    if isinstance(error, _MISSING):
        return MediaRefused(f"{address}: there is no such object", reason="fetch_failed")
    if isinstance(error, PermissionError) or name in _NO_CREDENTIALS:
        return MediaRefused(
            f"{address}: the store refuses it: {_said(error)}",
            hint="the store's package finds credentials in its own settings",
            reason="fetch_forbidden",
        )
    message = f"{address} could not be read: {name}: {_said(error)}"
    return BackendFailed(message, status=None)


def _said(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__
