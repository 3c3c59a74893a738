"""All settings, declared once with units; flags and docs derive from here.

Only this file reads the environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from mmserve.core.errors import BadRequest

__all__ = [
    "ClipDecoder",
    "CudaGraphs",
    "EngineConfig",
    "Eviction",
    "Isolation",
    "Kernels",
    "LogFormat",
    "MediaConfig",
    "Policy",
    "SchedConfig",
    "ServerConfig",
    "WeightFormat",
    "c_compilers",
    "cache_folder",
    "child_environment",
    "default_threads",
    "template_text",
]

_MIB = 1 << 20
_FINITE = sys.float_info.max

Policy = Literal[
    "longest-prefix", "fcfs", "priority", "dfs-weight", "shortest-prefill", "random"
]
Eviction = Literal["lru", "lfu", "slru", "cost"]
WeightFormat = Literal["full", "int8", "int4"]
Kernels = Literal["auto", "torch", "native", "triton"]
CudaGraphs = Literal["lazy", "start", "off"]
Isolation = Literal["process", "thread"]
ClipDecoder = Literal["av", "decord"]
LogFormat = Literal["text", "json", "off"]

_ORIGIN = re.compile(r"https?://[^\s/*@?#]+")
_ENDPOINT = re.compile(r"https?://[^\s/@]+(/\S*)?")

_KEPT_IN_CHILDREN = (
    "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "TMPDIR", "LANG", "LC_ALL"
)  # fmt: skip
_FRUGAL = {
    "MALLOC_ARENA_MAX": "2",  # an arena reserves 64 MiB of address space
    "MALLOC_MMAP_THRESHOLD_": "33554432",  # a picture's memory is used for the next one,
    "MALLOC_TRIM_THRESHOLD_": "67108864",  # which saves 8 ms of page faults at 1080p
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


def _setting(
    default: Any,  # noqa: ANN401
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    is_above: bool = False,
    is_secret: bool = False,
    flag: str | None = None,
) -> Any:  # noqa: ANN401
    """A field; numbers from `low` (without it, if `is_above`) to `high`, if these are given.

    `flag` is its flag on the command line, if it has another than its name.
    """
    limits = {} if low is None else {"low": low, "high": high, "is_above": is_above}
    return field(
        default=default, metadata={"doc": doc, "flag": flag, **limits}, repr=not is_secret
    )


def template_text(template: str | Path) -> str:
    """A chat template given as Jinja text, or as a file that holds it.

    Raises BadRequest for a text that is neither Jinja nor the path of a file.
    """
    if isinstance(template, str) and "{" in template:
        return template
    path = Path(template)
    if not path.is_file():
        message = f"chat_template is {str(template)[:100]!r}: neither Jinja text nor a file"
        raise BadRequest(message, field="chat_template", reason="value")
    return path.read_text(encoding="utf-8")


def default_threads() -> int:
    """Threads for tensor work: MMSERVE_THREADS, else every core."""
    return int(os.environ.get("MMSERVE_THREADS", "0")) or os.cpu_count() or 1


def c_compilers() -> tuple[str, ...]:
    """Names of C compilers to try: CC, if that is set, else the usual ones."""
    chosen = os.environ.get("CC")
    return (chosen,) if chosen else ("cc", "gcc", "clang")


def cache_folder() -> Path:
    """This user's folder for what can be made again; it need not exist yet."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mmserve"
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "mmserve"


def child_environment() -> dict[str, str]:
    """What a process that handles hostile bytes sees of the environment: no secrets. Pure.

    Libraries are told to reserve little, since address space counts against its limit.
    """
    kept = {name: os.environ[name] for name in _KEPT_IN_CHILDREN if name in os.environ}
    return {**kept, **_FRUGAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedConfig:
    """Budgets and limits of the scheduler."""

    max_step_tokens: int = _setting(2048, "most tokens computed in one step", low=1)
    chunk_tokens: int = _setting(1024, "most prompt tokens of one sequence in one step", low=1)
    max_step_patches: int = _setting(16384, "most picture patches encoded in one step", low=0)
    max_running: int = _setting(128, "most sequences that hold KV at once", low=1)
    page_tokens: int = _setting(1, "tokens per page of KV", low=1, high=64)
    feature_cache_tokens: int = _setting(32768, "most encoded picture tokens kept", low=0)
    radix_cache: bool = _setting(default=True, doc="keep KV of finished sequences for reuse")
    jump_forward: bool = _setting(
        default=True,
        doc="compute text that a grammar leaves no choice about in one step",
    )
    policy: Policy = _setting(  # noqa: RUF009 - a field; the linter does not know the alias
        "longest-prefix", "order of the waiting requests of one client"
    )
    eviction: Eviction = _setting(  # noqa: RUF009 - as above
        "lru", "which cached KV goes first when slots are needed"
    )
    fairness: bool = _setting(
        default=True, doc="give clients their shares of service before locality counts"
    )
    quantum_tokens: int = _setting(
        16384, "service by weight that a round adds for each client, in prefill tokens", low=1
    )
    client_weights: tuple[tuple[str, float], ...] = _setting(
        (), "share of a client against 1 of the others, as name=weight"
    )
    client_priorities: tuple[tuple[str, int], ...] = _setting(
        (), "class of a client, higher goes first, as name=priority"
    )
    decode_cost: float = _setting(
        2.0,
        "service charged for a generated token, in prefill tokens",
        low=0,
        high=1e6,
    )
    patch_cost: float = _setting(
        0.25,
        "service charged for a patch encoded, in prefill tokens",
        low=0,
        high=1e6,
    )
    media_ms_cost: float = _setting(
        1.0,
        "service charged for a millisecond of media decoding, in prefill tokens",
        low=0,
        high=1e6,
    )
    max_sweep_joiners: int = _setting(
        8, "newcomers that may join a sweep that began short; others take more; 0: none", low=0
    )
    max_passes: int = _setting(
        16, "others that may start before a request for which there are no slots", low=0
    )
    max_waiting: int = _setting(
        100_000, "most waiting sequences; more are refused as busy", low=1
    )
    target_itl_ms: float | None = _setting(
        None,
        "most milliseconds between two tokens of a running answer; default: no target",
        low=0,
        is_above=True,
    )
    history_tokens: int | None = _setting(
        None, "evicted tokens remembered to explain misses; default: as many as slots", low=0
    )

    def __post_init__(self) -> None:
        """Raise BadRequest for a value with which requests would never run, or in no order."""
        _check_ranges(self)
        _check_word("policy", self.policy, get_args(Policy))
        _check_word("eviction", self.eviction, get_args(Eviction))
        _check_names("client_weights", self.client_weights)
        _check_names("client_priorities", self.client_priorities)
        for client, weight in self.client_weights:
            if not 1e-6 <= weight <= 1e6:
                message = (
                    f"client_weights of {client!r} is {weight}, it must be from 1e-06 to 1e+06"
                )
                raise BadRequest(message, field="client_weights", reason="range")


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
    clip_decoder: ClipDecoder = _setting(  # noqa: RUF009 - as `isolation` below
        "av", "library that decodes clips which both read right; decord only if installed"
    )
    fetch_timeout_s: float = _setting(10.0, "longest fetch of one address in seconds")
    max_redirects: int = _setting(5, "redirects followed, each checked again")
    allow_private_hosts: bool = _setting(
        default=False, doc="fetch from private and loopback addresses"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), "fetch only from these hosts, if any is named"
    )
    media_folder: str | None = _setting(None, "folder that file:// may read from")
    workers: int = _setting(2, "pictures decoded at once, and as many clips beside them", low=1)
    isolation: Isolation = _setting(  # noqa: RUF009 - a field; the linter does not know the alias
        "process", "where files are decoded: in child processes with limits, or in threads"
    )
    decode_memory_bytes: int = _setting(
        1536 * _MIB, "most memory that a child may take for one picture or clip", low=_MIB
    )
    decode_timeout_s: float = _setting(
        30.0,
        "longest decoding of a picture, look at a clip, or stretch of it without progress",
        low=0,
        is_above=True,
    )
    clip_timeout_s: float = _setting(
        600.0, "longest decoding of one pass over a clip", low=0, is_above=True
    )
    source_cache_bytes: int = _setting(
        256 * _MIB, "most bytes of media held for hints: fetched, or waiting to be decoded"
    )
    source_cache_s: float = _setting(
        60.0, "seconds that media fetched for a hint wait for a request to use them"
    )

    def __post_init__(self) -> None:
        """Raise BadRequest for a value with which nothing could be decoded."""
        _check_ranges(self)
        _check_word("isolation", self.isolation, get_args(Isolation))
        _check_word("clip_decoder", self.clip_decoder, get_args(ClipDecoder))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: model, device, memory, and the settings of its rooms."""

    model: str = _setting("tabletop", "directory, .gguf file, or embedded name")
    served_name: str | None = _setting(None, "name clients use; default: the model's own")
    chat_template: str | None = _setting(
        None, "Jinja text or a file of it; default: the model's own"
    )
    device: str = _setting("auto", "cpu, cuda, or auto")
    dtype: str = _setting("auto", "float32, float16, bfloat16; auto: float32 on a CPU")
    weights: WeightFormat = _setting(  # noqa: RUF009 - a field; the linter does not know the alias
        "full", "bits of the decoder's weights: full (as dtype says), int8 or int4"
    )
    kernels: Kernels = _setting(  # noqa: RUF009 - as above
        "auto",
        "what computes: native (C, compiled at the first start) or triton; torch runs anywhere",
    )
    context_length: int | None = _setting(
        None, "most tokens of prompt and answer; default: the model's"
    )
    num_slots: int | None = _setting(None, "tokens of KV to hold; default: from kv_bytes")
    kv_bytes: int | None = _setting(
        None,
        "memory for KV when num_slots is not given; default: 1 GiB, on a GPU what is free",
        low=1,
    )
    memory_share: float = _setting(
        0.9,
        "share of a GPU's memory free beside the weights that KV, features and steps may take",
        low=0,
        high=1,
        is_above=True,
    )
    cuda_graphs: CudaGraphs = _setting(  # noqa: RUF009 - as above
        "lazy", "when decode steps are captured as CUDA graphs: at first use, at the start, off"
    )
    threads: int | None = _setting(None, "threads for tensor work; default: every core")
    grammar_cache_bytes: int = _setting(64 * _MIB, "bytes of compiled grammars kept")
    grammar_workers: int = _setting(2, "threads that compile grammars", low=1)
    grammar_timeout_s: float = _setting(
        10.0,
        "longest that a request waits for its grammar, in seconds",
        low=0,
        high=86_400,
        is_above=True,
    )
    max_grammar_bytes: int = _setting(
        _MIB, "most bytes of a regex, schema, grammar or list of choices", low=1
    )
    max_waiting_grammars: int = _setting(
        1024, "most grammars waiting to be compiled; more are refused as busy", low=1
    )
    feature_cache_bytes: int = _setting(
        512 * _MIB,
        "most bytes of encoded pictures and frames kept, within feature_cache_tokens",
    )
    verify_steps: bool = _setting(default=False, doc="check all ledgers after every step")
    sched: SchedConfig = field(default_factory=SchedConfig)
    media: MediaConfig = field(default_factory=MediaConfig)

    def __post_init__(self) -> None:
        """Raise BadRequest for a value with which nothing could be served."""
        _check_ranges(self)
        _check_word("weights", self.weights, get_args(WeightFormat))
        _check_word("cuda_graphs", self.cuda_graphs, get_args(CudaGraphs))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server around an engine."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(30000, "port to listen on; 0 picks a free one")
    api_key: str | None = _setting(
        None, "key that clients must send as a bearer token", is_secret=True
    )
    client_keys: tuple[tuple[str, str], ...] = _setting(
        (),
        "key of one client, as name=key; given any, all requests need one of these or api_key",
        is_secret=True,
    )
    is_page_served: bool = _setting(
        default=True, doc="serve the web page at /", flag="--no-page"
    )
    max_body_bytes: int = _setting(100 * _MIB, "most bytes of a request body")
    body_timeout_s: float = _setting(
        60.0,
        "seconds that a request body may take, and one more for each 16 KiB of it",
        low=0,
        high=86_400,
        is_above=True,
    )
    max_file_store_bytes: int = _setting(
        1024 * _MIB, "bytes of uploaded files kept; the least recently used leave first"
    )
    drain_s: float = _setting(
        30.0, "seconds that running requests get to end after a signal", low=0, high=86_400
    )
    engine_open_s: float = _setting(
        3600.0,
        "seconds that an engine may take to open its model, what it downloads included",
        low=0,
        high=604_800,
        is_above=True,
    )
    engine_stuck_s: float = _setting(
        120.0,
        "seconds after which an engine whose loop does not come by is replaced",
        low=0,
        high=86_400,
        is_above=True,
    )
    file_expiry_s: float = _setting(
        86_400.0,
        "seconds that an uploaded file is kept after its last use",
        low=0,
        high=315_360_000,
        is_above=True,
    )
    response_store_bytes: int = _setting(
        64 * _MIB, "bytes of stored responses kept; the least recently used leave first"
    )
    response_expiry_s: float = _setting(
        86_400.0,
        "seconds that a stored response is kept after its last use",
        low=0,
        high=315_360_000,
        is_above=True,
    )
    admin_key: str | None = _setting(
        None,
        "key of the operator: flushing, aborting all, drawings; opens the other routes, too",
        is_secret=True,
    )
    namespace_by_key: bool = _setting(
        default=False, doc="give each client key a cache of its own, shared with nobody"
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "origin of web pages that may call this server, as https://host; none by default"
    )
    max_open_requests: int = _setting(
        4096, "most requests under way at once; more are refused with 429", low=1
    )
    max_client_requests: int = _setting(
        0, "most requests of one client under way at once, more are a 429; 0: no limit", low=0
    )
    log_format: LogFormat = _setting(  # noqa: RUF009 - as above
        "text", "one line on stderr for each request, without its content"
    )
    otlp_endpoint: str | None = _setting(
        None, "address of the OpenTelemetry collector that gets spans, with its path /v1/traces"
    )

    def __post_init__(self) -> None:
        """Raise BadRequest for keys that would let everybody pass or tell nobody apart."""
        _check_ranges(self)
        _check_word("log_format", self.log_format, get_args(LogFormat))
        _check_addresses(self)
        _check_names("client_keys", self.client_keys)
        others = {"", self.api_key, *(key for _, key in self.client_keys)}
        if self.admin_key is not None and self.admin_key in others:
            message = "admin_key is empty, or a key that others have"
            raise BadRequest(message, field="admin_key", reason="value")
        keys = [key for _, key in self.client_keys]
        if not all(keys) or len({*keys, self.api_key}) <= len(keys):
            message = "client_keys has an empty key, or one that somebody else has"
            raise BadRequest(message, field="client_keys", reason="value")


def _check_addresses(settings: ServerConfig) -> None:
    for origin in settings.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            message = f"cors_origins has {origin[:100]!r}, which is no origin"
            hint = "name each as https://host or http://host:port, without a path or a *"
            raise BadRequest(message, hint=hint, field="cors_origins", reason="value")
    endpoint = settings.otlp_endpoint
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        message = "otlp_endpoint is no http address, or holds a password"
        raise BadRequest(message, field="otlp_endpoint", reason="value")


def _check_ranges(settings: SchedConfig | MediaConfig | EngineConfig | ServerConfig) -> None:
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        if value is not None and "low" in spec.metadata:
            _check_range(spec, value)


def _check_range(spec: Field[Any], value: float) -> None:
    low, high, is_above = (spec.metadata[name] for name in ("low", "high", "is_above"))
    most = _FINITE if high is None else high
    if low <= value <= most and not (is_above and value == low):
        return
    limit = "it must be finite" if high is None else f"the most is {high:g}"
    if value <= low:
        limit = f"it must be above {low:g}" if is_above else f"the least is {low:g}"
    raise BadRequest(f"{spec.name} is {value}, {limit}", field=spec.name, reason="range")


def _check_word(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        words = ", ".join(allowed)
        raise BadRequest(f"{name} is {value!r}, allowed is {words}", field=name, reason="value")


def _check_names(name: str, pairs: Iterable[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for client, _ in pairs:
        if client in seen:
            message = f"{name} names {client!r} twice"
            raise BadRequest(message, field=name, reason="conflict")
        seen.add(client)
