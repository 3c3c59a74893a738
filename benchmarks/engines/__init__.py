"""Engines side by side: each in a process and an environment of its own.

    suite ── open_worker(name) ── JSON lines ── NAME_worker.py (in .bench/NAME) ── the engine
                                                     └── its server, for runs over HTTP

`make bench-env` makes the environments (`install`), `export` writes one checkpoint in each
engine's form. This package imports the standard library only, as workers import it in
environments that have nothing of the project.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.engines.worker import (
    Answer,
    EngineAbsent,
    EngineFailed,
    EngineSpec,
    Job,
    Loaded,
    Ran,
    Worker,
    start,
)

__all__ = [
    "ENGINES",
    "Answer",
    "EngineAbsent",
    "EngineFailed",
    "EngineSpec",
    "Job",
    "Loaded",
    "Ran",
    "Worker",
    "open_worker",
]

ENGINES = (
    EngineSpec(
        name="mmserve",
        module="mmserve_worker",
        environment=None,
        can=frozenset({"text", "image", "video", "at_once", "serve"}),
        packages=("mmserve",),
    ),
    EngineSpec(
        name="transformers",
        module="transformers_worker",
        environment=None,
        can=frozenset({"text", "image", "video"}),
        packages=("transformers",),
    ),
    EngineSpec(
        name="transformers-batched",
        module="transformers_worker",
        arguments=("--batched",),
        environment=None,
        can=frozenset({"text", "image", "video", "at_once"}),
        packages=("transformers",),
    ),
    EngineSpec(
        name="transformers-serve",
        module="transformers_serve_worker",
        environment=None,
        can=frozenset({"text", "at_once", "serve"}),
        packages=("transformers",),
    ),
    EngineSpec(
        name="llama.cpp",
        module="llama_cpp_worker",
        environment="llama.cpp",
        can=frozenset({"text", "image", "serve"}),
        packages=("llama_cpp",),
    ),
    EngineSpec(
        name="vllm",
        module="vllm_worker",
        environment="vllm",
        can=frozenset({"text", "image", "at_once", "serve"}),
        packages=("vllm",),
    ),
    EngineSpec(
        name="openvino",
        module="openvino_worker",
        environment="openvino",
        can=frozenset({"text", "image", "at_once"}),
        packages=("openvino_genai",),
    ),
)


def open_worker(name: str, *, log: Path) -> Worker:
    """A process of one of `ENGINES`, without a model yet; use it as a context manager.

    Args:
        name: of the engine.
        log: file that takes whatever the engine prints.

    Raises EngineAbsent if its environment is not there or it cannot run, KeyError for a name
    that no engine has.
    """
    return start({spec.name: spec for spec in ENGINES}[name], log=log)
