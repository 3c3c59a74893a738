"""The README tells what the program does: its transcript, its Python, its examples."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmserve.core import ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def between(name: str) -> str:
    """The README's text between two marks."""
    found = re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", README, re.S)
    assert found
    return found[1]


def masked(transcript: str) -> str:
    """A transcript without what may differ: times, and which question came first to a clip."""
    without = re.sub(r"\d+ +[\d.,]+ ?ms", "# ms", transcript)
    return re.sub(r" *\n", "\n", re.sub(r"[ ─━]+", " ", without)).strip()


def run(*words: str | Path) -> str:
    """Output of a program of this repository."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_transcript_is_what_the_demo_prints() -> None:
    """`mmserve demo` prints the README's transcript, times apart."""
    printed = run(sys.executable, "-m", "mmserve", "demo")
    assert masked(printed) == masked(between("demo").replace("```\n", ""))


GUIDES = "".join(path.read_text() for path in sorted((ROOT / "docs/guides").glob("*.md")))
BLOCKS = re.findall(r"```python\n(.*?)```", README + GUIDES, re.S)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block: str, tmp_path: Path) -> None:
    """Every Python block that is not marked no-run runs as it stands."""
    program = tmp_path / "block.py"
    program.write_text(block)
    assert run(sys.executable, program)


@pytest.mark.parametrize("name", ["essay_judge.py", "many_questions.py"])
def test_examples_run(name: str) -> None:
    """The examples run as a newcomer would start them."""
    assert run(sys.executable, ROOT / "examples" / name)


def test_the_openai_example_runs() -> None:
    """The unmodified `openai` client talks to a served `tabletop`, and its second call hits."""
    config = ServerConfig(port=0)
    with Engine(model="tabletop", threads=1) as engine, RunningServer(engine, config) as server:
        printed = run(sys.executable, ROOT / "examples/openai_client.py", server.url)
    cached = [int(count) for count in re.findall(r"(\d+) cached", printed)]
    assert cached[0] < 36 < cached[1]


def test_figures_are_those_of_the_recorded_run() -> None:
    """The README's speed figures are in the record that it names."""
    summary = json.loads((ROOT / "benchmarks/results/image_qa.json").read_text())["summary"]
    told = between("bench")
    for name in ("speedup_vs_transformers_sequential", "speedup_vs_transformers_batched"):
        assert f"{summary[name]:.1f}x" in told
    assert f"{summary['computed_over_least']:.3f}" in told
