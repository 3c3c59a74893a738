"""Every error mmserve raises, in one tree.

MmserveError                 every error has: code (stable word), fields, hint
├── RequestRefused           the caller can fix it
│   ├── BadRequest           field, reason
│   ├── ContextTooLong       tokens, limit_tokens
│   ├── MediaRefused         reason: too_large | undecodable | unsupported |
│   │                        fetch_forbidden | fetch_failed
│   ├── ConstraintRefused    position, reason
│   ├── UnsupportedByBackend parameter, backend
│   └── ProgramMisuse        a program of the language does something that has no meaning
├── NotFound                 what, name
├── Busy                     try later: retry_after_s
├── EngineDown               the engine's process is gone, try later: retry_after_s
├── Aborted                  the caller left
├── CallTimeout              timeout_s
├── BackendFailed            status: a server answered with an error
├── UnknownVariable          name (also a KeyError)
├── ModelRefused             at load
│   ├── UnsupportedModel     architecture
│   └── WeightMismatch       name, want, got
├── MissingExtra             an optional package is not installed
└── Broken                   our fault
    ├── LedgerBroken         slots or pins do not add up
    └── RunnerFailed         step

Messages say what, the value, the limit; the way out is `hint`. HTTP status codes live in
`server/errors.py` only.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "Aborted",
    "BackendFailed",
    "BadRequest",
    "Broken",
    "Busy",
    "CallTimeout",
    "ConstraintRefused",
    "ContextTooLong",
    "EngineDown",
    "LedgerBroken",
    "MediaRefused",
    "MissingExtra",
    "MmserveError",
    "ModelRefused",
    "NotFound",
    "ProgramMisuse",
    "RequestRefused",
    "RunnerFailed",
    "UnknownVariable",
    "UnsupportedByBackend",
    "UnsupportedModel",
    "WeightMismatch",
]


class MmserveError(Exception):
    """Base of all errors: `message`, stable `code`, machine-readable `fields`, and a `hint`."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields

    @property
    def param(self) -> str | None:
        """Name of the request field at fault, if one is."""
        field = self.fields.get("field")
        return field if isinstance(field, str) else None

    def __str__(self) -> str:
        return f"{self.message}. hint: {self.hint}" if self.hint else self.message


class RequestRefused(MmserveError):
    """The caller can fix it."""

    code = "request_refused"


class BadRequest(RequestRefused):
    """A field has a value that cannot be served; fields: field, reason."""

    code = "bad_request"


class ContextTooLong(RequestRefused):
    """Prompt and answer do not fit; fields: tokens, limit_tokens, text_tokens, media_tokens."""

    code = "context_too_long"


class MediaRefused(RequestRefused):
    """A picture or clip cannot be used; fields: reason, and where known index."""

    code = "media_refused"


class ConstraintRefused(RequestRefused):
    """A regex, schema or grammar cannot be enforced; fields: position or keyword, reason."""

    code = "constraint_refused"


class UnsupportedByBackend(RequestRefused):
    """A backend cannot do what was asked; fields: parameter, backend."""

    code = "unsupported_by_backend"


class ProgramMisuse(RequestRefused):
    """A program of the language does something that has no meaning."""

    code = "program_misuse"


class NotFound(MmserveError):
    """No such model, file or route; fields: what, name."""

    code = "not_found"


class Busy(MmserveError):
    """Try later; fields: retry_after_s."""

    code = "busy"


class EngineDown(MmserveError):
    """The engine's process has ended or has not started yet; fields: retry_after_s."""

    code = "engine_down"


class Aborted(MmserveError):
    """The caller left, or asked for the call to end."""

    code = "aborted"


class CallTimeout(MmserveError):
    """A call took longer than its limit; fields: timeout_s."""

    code = "call_timeout"


class BackendFailed(MmserveError):
    """A server answered with an error; fields: status."""

    code = "backend_failed"


class UnknownVariable(MmserveError, KeyError):
    """A program reads a variable that no statement sets; fields: name."""

    code = "unknown_variable"

    __str__ = MmserveError.__str__


class ModelRefused(MmserveError):
    """The model cannot be loaded."""

    code = "model_refused"


class UnsupportedModel(ModelRefused):
    """No family serves this architecture; fields: architecture."""

    code = "unsupported_model"


class WeightMismatch(ModelRefused):
    """A tensor is missing or has another shape; fields: name, want, got."""

    code = "weight_mismatch"


class MissingExtra(MmserveError):
    """An optional package is not installed; fields: package, extra."""

    code = "missing_extra"


class Broken(MmserveError):
    """Our fault."""

    code = "broken"


class LedgerBroken(Broken):
    """Slots, pins or bytes do not add up."""

    code = "ledger_broken"


class RunnerFailed(Broken):
    """A step failed on the device; fields: step."""

    code = "runner_failed"
