"""GuideLLM, a public load generator: `python with_guidellm.py URL TEST OPTIONS`.

Options: `tokenizer`, a folder with the tokenizer that it counts prompts with.

Its run may end before the last of its processes has told of an answer, so how many were
answered is read from the server's metrics; all that it does tell of must be a whole answer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from asked import MODEL, call, same

_NUM_REQUESTS = 12
_TEXT = "kind=synthetic_text,prompt_tokens=64,output_tokens=8"
_PICTURES = "kind=synthetic_image,width=320,height=240,format=png,content=noise,output_tokens=8"
_OUTPUT = "guidellm.json"


def _load(url: str, data: str, profile: str, route: str) -> list[dict[str, Any]]:
    """Play a load; the requests that were answered."""
    tokenizer = json.loads(sys.argv[3])["tokenizer"]
    program = str(Path(sys.executable).with_name("guidellm"))
    words = ["env", "HF_HUB_OFFLINE=1", program, "run", "--disable-progress"]
    words += [
        "--backend",
        f"kind=openai_http,target={url},model={MODEL},request_format={route}",
    ]
    words += ["--profile", profile, "--constraint", f"kind=max_requests,count={_NUM_REQUESTS}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    words += ["--data", data, "--output", f"kind=json,path={_OUTPUT}"]
    before = _answered(url)
    subprocess.run(words, check=True)
    same(_answered(url) - before, _NUM_REQUESTS)
    (played,) = json.loads(Path(_OUTPUT).read_text())["benchmarks"]
    same((len(played["requests"]["errored"]), len(played["requests"]["incomplete"])), (0, 0))
    answered: list[dict[str, Any]] = played["requests"]["successful"]
    same(0 < len(answered) <= _NUM_REQUESTS, True)  # noqa: FBT003
    for one in answered:
        same(one["output_metrics"]["text_tokens"], 8)
    return answered


def _answered(url: str) -> int:
    """Answers that the server has brought to their end at the wanted length."""
    with urllib.request.urlopen(f"{url}/metrics") as page:
        found = re.search(
            r'finished_total\{reason="length"\} ([0-9.e+]+)', page.read().decode()
        )
    return int(float(found.group(1))) if found else 0


def streams(url: str) -> None:
    """Four streams at once on the chat route."""
    _load(url, _TEXT, "kind=concurrent,streams=[4]", "/v1/chat/completions")


def completions(url: str) -> None:
    """The older route."""
    _load(url, _TEXT, "kind=concurrent,streams=[4]", "/v1/completions")


def rate(url: str) -> None:
    """Requests that come by their own clock."""
    _load(url, _TEXT, "kind=constant,rate=[8]", "/v1/chat/completions")


def pictures(url: str) -> None:
    """Generated pictures as data addresses."""
    _load(url, _PICTURES, "kind=concurrent,streams=[4]", "/v1/chat/completions")


call({"streams": streams, "completions": completions, "rate": rate, "pictures": pictures})
