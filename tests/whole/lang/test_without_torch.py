"""The language against a server, in an interpreter that has no tensor library."""

from __future__ import annotations

import subprocess
import sys

from mmserve.testing import scene

PROGRAM = """
import sys

sys.modules |= dict.fromkeys(("torch", "transformers", "tokenizers", "triton", "safetensors"))
import mmserve.lang as sgl


@sgl.function
def look(s, picture):
    s += sgl.user(sgl.image(picture) + "How many objects are there?")
    s += sgl.assistant(sgl.gen("count", regex="[0-9]+"))
    forks = s.fork(2)
    forks += sgl.user("Is there a cross?") + sgl.assistant(sgl.select("cross", ["Yes", "No"]))
    forks.join()
    s += sgl.user("As JSON.")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    s += sgl.assistant(sgl.gen("json", json_schema=schema, max_tokens=40))


with sgl.RuntimeEndpoint(sys.argv[1]) as backend:
    states = look.run_batch([{"picture": sys.argv[2]}] * 2, backend=backend, temperature=0)
    print(states[0]["count"], states[0]["cross"][0] == states[0]["cross"][1])
    print(states[0].text() == states[1].text(), states[0]["json"].startswith("{"))
"""


def test_programs_run_without_a_tensor_library(server_url: str, tmp_path) -> None:
    """Pictures, constraints, forks, selects and batches need nothing of the tensor wing."""
    picture = tmp_path / "scene.png"
    scene(7).image.save(picture)
    words = [sys.executable, "-c", PROGRAM, server_url, str(picture)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    count, same = done.stdout.splitlines()[0].split()
    assert count.isdigit()
    assert (same, done.stdout.splitlines()[1]) == ("True", "True True")
