"""The concept pages show what the scheduler does: their drawings, numbers, flags and Python."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mmserve.core import EngineConfig, SchedConfig, ServerConfig
from mmserve.radix import Node, RadixTree
from mmserve.sched.order.fairness import Fairness
from mmserve.sched.order.queues import Queues
from mmserve.sched.order.rules import RULES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/concepts"
PAGES = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
TEXT = "".join(PAGES.values())
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def between(name: str) -> str:
    """What the pages have between two marks."""
    found = re.search(rf"<!-- {name}:begin -->(.*?)<!-- {name}:end -->", TEXT, re.S)
    assert found, name
    return found[1]


def test_drawings_are_what_the_scheduler_draws() -> None:
    """Running the script again changes neither a page nor an SVG file."""
    script = runpy.run_path(str(FOLDER / "draw.py"))
    assert {
        path.name for path, text in script["results"]().items() if text != path.read_text()
    } == set()


def test_every_drawing_has_a_place() -> None:
    """What the script draws is shown on a page."""
    script = runpy.run_path(str(FOLDER / "draw.py"))
    makers = ("sharing", "order", "programs", "constrained")
    for name in (name for maker in makers for name in script[maker]()):
        assert (f"({name})" if name.endswith(".svg") else f"<!-- {name}:begin -->") in TEXT


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block: str, tmp_path: Path) -> None:
    """The Python of the pages runs as it stands, and its second question hits the picture."""
    program = tmp_path / "block.py"
    program.write_text(block)
    words = [sys.executable, str(program)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "'image', 'hit'" in done.stdout


def test_links_lead_somewhere() -> None:
    """Files that the pages link to exist."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT):
        assert (FOLDER / target).exists(), target


def test_files_of_the_code_exist() -> None:
    """A Python file that the pages name is in the repository; a bare name is in one folder."""
    for name in re.findall(r"`([\w/]+\.py)`", TEXT):
        assert (ROOT / name).exists() or list((ROOT / "mmserve/sched").rglob(name)), name


def test_flags_exist() -> None:
    """Each flag named is a setting."""
    names = {
        spec.name
        for config in (SchedConfig, EngineConfig, ServerConfig)
        for spec in fields(config)
    }
    for flag in re.findall(r"`--([a-z-]+)", TEXT):
        if flag not in {"check", "svg"}:
            assert flag.removeprefix("no-").replace("-", "_") in names, flag


def test_defaults_are_those_of_the_settings() -> None:
    """What work costs, as the page has it, is what the settings have."""
    config = SchedConfig()
    for name, value in re.findall(r"`--([a-z-]+-cost)` \(([\d.]+)\)", TEXT):
        assert getattr(config, name.replace("-", "_")) == float(value)
    assert f"For the default of {config.max_sweep_joiners}" in TEXT


# Sweeps


def room_of(num_waiting: int, few: int) -> tuple[int, int]:
    """Newcomers that join a sweep begun with so many, and continuations, by trying."""
    config = SchedConfig(max_sweep_joiners=few)
    queues = Queues(RULES["longest-prefix"], Fairness(config), few)
    made: list[Any] = []

    def enter(goes_on: tuple[str, int] | None = None) -> int:
        sequence = SimpleNamespace(spec=SimpleNamespace(client="a"), sweep=0)
        queues.enter(sequence, goes_on)  # type: ignore[arg-type]
        made.append(sequence)
        return int(sequence.sweep)

    sweep = enter()
    for _ in range(num_waiting - 1):
        enter()
    queues._begin_sweep(queues._queues["a"], sweep)
    num_joined = num_continued = 0
    while enter() == sweep:
        num_joined += 1
    while enter(("a", sweep)) == sweep:
        num_continued += 1
    return num_joined, num_continued


def test_rooms_of_sweeps_are_those_of_the_table() -> None:
    """As many newcomers join as the page says, and eight times as many continuations."""
    head, _, *rows = between("rooms").strip().splitlines()
    lengths = [int(number) for number in re.findall(r"n = (\d+)", head)]
    for row in rows:
        few, *rooms = map(int, re.findall(r"\d+", row))
        assert [room_of(length, few) for length in lengths] == [(r, 8 * r) for r in rooms]


def test_bounds_of_waits_follow_from_the_rooms() -> None:
    """The numbers for a hundred waiting are those of lemma 2."""
    newcomers, continued = room_of(100, SchedConfig().max_sweep_joiners)
    joined = newcomers + continued
    assert between("waits") == f"{joined} or {continued + 99 + joined}"
    assert f"continuations {newcomers} or {newcomers + 99}." in TEXT


# Rounds


def fairness_with(num_clients: int, quantum: int = 1000) -> Fairness:
    """Rounds of so many clients, of which the first one was served a whole quantum."""
    fairness = Fairness(SchedConfig(quantum_tokens=quantum))
    for number in range(num_clients):
        fairness.arrive(str(number))
        fairness.lift(str(number))
    fairness.charge("0", quantum)
    fairness.advance("0")
    fairness.start("0")
    return fairness


@pytest.mark.parametrize("num_clients", [1, 8, 20])
def test_as_many_queues_come_into_a_round_as_the_page_says(num_clients: int) -> None:
    """The first max(8, n) newcomers have credit in it, the others in the next one."""
    assert "After that max(8, *n*) queues come in so" in TEXT
    fairness = fairness_with(num_clients)
    names = [f"new {number}" for number in range(50)]
    for name in names:
        fairness.lift(name)
    num_room = max(8, num_clients)
    assert [fairness.may_start(name) for name in names] == [
        place < num_room for place in range(50)
    ]
    fairness.charge("0", 1000)
    fairness.advance("0")
    assert all(fairness.may_start(name) for name in names)


@pytest.mark.parametrize(("cost", "num_starts", "phase"), [(249, 1, 0), (250, 1, 1), (0, 2, 1)])
def test_who_came_in_goes_first_for_as_long_as_the_page_says(
    cost: int, num_starts: int, phase: int
) -> None:
    """It does so until it used a quarter of the quantum or started 2 sequences."""
    assert "less than a quarter of the quantum and started fewer than 2" in TEXT
    fairness = fairness_with(1)
    fairness.lift("new")
    for _ in range(num_starts):
        fairness.start("new")
    fairness.charge("new", cost)
    assert fairness.phase("new") == phase


def test_starts_that_may_pass_a_queue_are_those_of_the_page() -> None:
    """Of two queues with credit, the one with the better place may start 32 (8 + 2) times."""
    assert "at least 32 · (8 + number of queues) starts of others have passed" in TEXT
    script = runpy.run_path(str(FOLDER / "draw.py"))
    stage = script["Stage"](num_slots=1024, max_running=1)
    stage.add(script["WARM"], num_new=1, client="warm")
    stage.finish()
    warm = {
        stage.add(script["WARM"], [60 + number % 60], num_new=1, client="warm")
        for number in range(800)
    }
    cold = [stage.add([50 + number], num_new=1, client="cold") for number in range(4)]
    stage.finish()
    first, last = map(stage.started.index, cold[-2:])
    assert set(stage.started[first + 1 : last]) <= warm
    assert last - first - 1 == 32 * (8 + 2)


# Bookkeeping


def num_bytes(array: NDArray[np.int64]) -> int:
    """Bytes of an array object without its numbers."""
    return sys.getsizeof(array) - (array.nbytes if array.base is None else 0)


def size_of(node: Node) -> int:
    """Bytes of a node with KV, without its keys and slots."""
    assert node.slots is not None
    parts = (node, node.children, node.guests)
    return sum(map(sys.getsizeof, parts)) + num_bytes(node.keys) + num_bytes(node.slots)


def a_tree(page_tokens: int = 1) -> RadixTree:
    """Fifty beginnings with ten ends each."""
    tree, num_used = RadixTree(page_tokens), 0
    root = tree.pin(tree.match("", np.arange(1), 0))
    for beginning in range(50):
        for end in range(10):
            keys = np.concatenate((np.full(40, beginning), np.full(20, 100 + end)))
            tree.insert(root, keys, np.arange(num_used, num_used + 60))
            num_used += 60
    return tree


def test_a_node_costs_what_the_page_says() -> None:
    """Sizes of nodes, measured, are those told; on average less than 600 bytes."""
    nodes = list(a_tree().nodes())
    sizes = {bool(node.children): size_of(node) for node in nodes}
    told = between("node bytes")
    node = next(node for node in nodes if not node.children)
    assert f"object is {sys.getsizeof(node)} bytes" in told
    assert f"arrays {num_bytes(node.keys) * 2}" in told
    assert f"dictionaries {sys.getsizeof(node.children) * 2} when empty" in told
    assert f"a leaf\ncomes to {sizes[False]} bytes" in told
    assert min(size_of(node) for node in nodes if node.children) >= 664
    assert sum(map(size_of, nodes)) / len(nodes) < 600


@pytest.mark.parametrize("page_tokens", [1, 4, 20])
def test_a_token_costs_sixteen_bytes(page_tokens: int) -> None:
    """Keys and slots of all nodes are 8 bytes a token each, and no node views another's."""
    tree = a_tree(page_tokens)
    total = 0
    for node in tree.nodes():
        assert node.slots is not None
        assert node.keys.base is None
        assert node.slots.base is None
        total += node.keys.nbytes + node.slots.nbytes
    assert total == 16 * tree.num_tokens
