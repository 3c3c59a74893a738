"""Public clients of OpenAI's API, and what each of them does against a server of ours.

Each client has an environment of its own, pinned in `public/NAME.txt`, and a script of the same
name in `inside/`, which uses the client as its guides do; the client itself is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmserve
from compat.checks import TABLETOP, Check

__all__ = ["PUBLIC_CHECKS", "PUBLIC_CLIENTS", "REQUIREMENTS", "python_of"]

REQUIREMENTS = Path(__file__).with_name("public")
_TOKENIZER = Path(mmserve.__file__).parent / "assets" / TABLETOP


def _checks(client: str, names: str, **values: Any) -> list[Check]:  # noqa: ANN401 - of Check
    return [
        Check(client=client, name=name, model=TABLETOP, needs_pictures=True, **values)
        for name in names.split()
    ]


PUBLIC_CHECKS: Sequence[Check] = (
    *_checks("with_litellm", "pictures stream at_once schema tools logprobs refusals"),
    *_checks(
        "with_langchain", "pictures blocks history stream batch structured tools logprobs"
    ),
    *_checks("with_langchain", "refusals"),
    *_checks("with_instructor", "enforced own_picture partial several raw plain"),
    *_checks(
        "with_guidellm",
        "streams completions rate pictures",
        options={"tokenizer": str(_TOKENIZER)},
        limit_s=240.0,
    ),
)
PUBLIC_CLIENTS = tuple(dict.fromkeys(check.client for check in PUBLIC_CHECKS))


def python_of(client: str, environments: Path) -> Path:
    """The interpreter of a client's environment; it need not be there. Pure."""
    return environments / client / "bin" / "python"
