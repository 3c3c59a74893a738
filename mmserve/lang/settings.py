"""The default backend, and what turns an engine into a backend."""

from __future__ import annotations

from mmserve.core import ProgramMisuse
from mmserve.lang.backends.client import ClientBackend
from mmserve.lang.backends.port import Backend

__all__ = [
    "GlobalConfig",
    "as_backend",
    "flush_cache",
    "get_server_info",
    "global_config",
    "set_default_backend",
]


class GlobalConfig:
    """Settings of the language for this process.

    `default_backend` answers runs that name none; `skip_special_tokens_in_output` leaves
    control tokens out of generated text; `enable_precache_with_tracing` lets compiled batches
    compute the prefix their rows share first. The others are there for programs that set them;
    nothing depends on them.
    """

    def __init__(self) -> None:
        self.default_backend: Backend | None = None
        self.verbosity = 0
        self.skip_special_tokens_in_output = True
        self.spaces_between_special_tokens_in_out = True
        self.enable_precache_with_tracing = True
        self.enable_parallel_encoding = True


global_config = GlobalConfig()


def as_backend(value: object) -> Backend:
    """The backend that `value` is or wraps to; None gives the default one.

    Raises ProgramMisuse if there is none, TypeError if it is neither a backend nor an engine.
    """
    if value is None:
        if global_config.default_backend is None:
            message = "no backend is set"
            hint = "call set_default_backend(Engine(...)), or pass backend="
            raise ProgramMisuse(message, hint=hint)
        value = global_config.default_backend  # which programs may set to an engine, too
    if hasattr(value, "start") and hasattr(value, "server_info"):
        return value  # type: ignore[return-value]
    if hasattr(value, "submit") and hasattr(value, "model"):
        return ClientBackend(value)  # type: ignore[arg-type]
    message = f"{type(value).__name__} is neither a backend nor an engine"
    raise TypeError(message)


def set_default_backend(backend: object) -> None:
    """Use this engine or backend for runs that name none. Changes: `global_config`."""
    if backend is None:
        global_config.default_backend = None
    else:
        global_config.default_backend = as_backend(backend)


def flush_cache(backend: object = None) -> bool:
    """Forget what a backend has cached; False if calls under way forbid it."""
    return as_backend(backend).flush_cache()


def get_server_info(backend: object = None) -> dict[str, object]:
    """What a backend says about itself."""
    return as_backend(backend).server_info()
