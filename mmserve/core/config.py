"""All settings, declared once with units; flags and docs derive from here.

Only this file reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from mmserve.core.errors import BadRequest

__all__ = ["EngineConfig", "MediaConfig", "SchedConfig", "ServerConfig", "default_threads"]

_MIB = 1 << 20


def _setting(default: Any, doc: str) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc})


def default_threads() -> int:
    """Threads for tensor work: MMSERVE_THREADS, else every core."""
    return int(os.environ.get("MMSERVE_THREADS", "0")) or os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedConfig:
    """Budgets and limits of the scheduler."""

    max_step_tokens: int = _setting(2048, "most tokens computed in one step")
    chunk_tokens: int = _setting(1024, "most prompt tokens of one sequence in one step")
    max_step_patches: int = _setting(16384, "most picture patches encoded in one step")
    max_running: int = _setting(128, "most sequences that hold KV at once")
    page_tokens: int = _setting(1, "tokens per page of KV")
    feature_cache_tokens: int = _setting(32768, "most encoded picture tokens kept")
    radix_cache: bool = _setting(default=True, doc="keep KV of finished sequences for reuse")
    policy: Literal["longest-prefix", "fcfs"] = _setting(
        "longest-prefix", "order of waiting requests"
    )
    max_wait_overtakes: int = _setting(
        16, "later arrivals that may start before a waiting request does"
    )
    max_waiting: int = _setting(100_000, "most waiting sequences; more are refused as busy")

    def __post_init__(self) -> None:
        """Raise BadRequest for a limit under which no request would ever run."""
        for name in ("max_step_tokens", "chunk_tokens", "max_running", "page_tokens"):
            if getattr(self, name) < 1:
                message = f"{name} is {getattr(self, name)}, the least is 1"
                raise BadRequest(message, field=name, reason="range")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """Limits and guards of the media plane."""

    max_pixels: int = _setting(64_000_000, "most pixels of one picture before resizing")
    max_media_bytes: int = _setting(64 * _MIB, "most bytes of one picture or clip")
    max_aspect_ratio: float = _setting(200.0, "longest side over shortest side")
    max_decode_frames: int = _setting(10_000, "most frames a clip may hold")
    max_video_frames: int = _setting(128, "most frames sampled from one clip")
    default_video_frames: int = _setting(8, "frames sampled when a request does not say")
    max_duration_s: float = _setting(3600.0, "longest clip in seconds")
    fetch_timeout_s: float = _setting(10.0, "longest fetch of one address in seconds")
    max_redirects: int = _setting(5, "redirects followed, each checked again")
    allow_private_hosts: bool = _setting(
        default=False, doc="fetch from private and loopback addresses"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "fetch only from these hosts, if any is named"
    )
    media_folder: str | None = _setting(None, "folder that file:// may read from")
    workers: int = _setting(2, "threads that decode media")
    source_cache_bytes: int = _setting(256 * _MIB, "bytes of fetched media kept in memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: model, device, memory, and the settings of its rooms."""

    model: str = _setting("tabletop", "directory, .gguf file, or embedded name")
    served_name: str | None = _setting(None, "name clients use; default: the model's own")
    device: str = _setting("auto", "cpu, cuda, or auto")
    dtype: str = _setting("auto", "float32, float16, bfloat16; auto: float32 on a CPU")
    context_length: int | None = _setting(
        None, "most tokens of prompt and answer; default: the model's"
    )
    num_slots: int | None = _setting(None, "tokens of KV to hold; default: from kv_bytes")
    kv_bytes: int = _setting(1024 * _MIB, "memory for KV when num_slots is not given, in bytes")
    threads: int | None = _setting(None, "threads for tensor work; default: every core")
    grammar_cache_bytes: int = _setting(64 * _MIB, "bytes of compiled grammars kept")
    verify_steps: bool = _setting(default=False, doc="check all ledgers after every step")
    sched: SchedConfig = field(default_factory=SchedConfig)
    media: MediaConfig = field(default_factory=MediaConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server around an engine."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(30000, "port to listen on; 0 picks a free one")
    api_key: str | None = _setting(None, "key that clients must send as a bearer token")
    max_body_bytes: int = _setting(100 * _MIB, "most bytes of a request body")
