"""Requests made up from `/openapi.json`, half of them against it, and answers held to it.

python -m support.schema_run 5000        many more than the test does; from `tests`
"""

from __future__ import annotations

import sys
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mmserve.core import EngineConfig, MediaConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer
from support.checkpoints import tiny_llava

__all__ = ["explore", "tiny_server_config"]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/systemone",
    "/generate",
    "/tokenize",
)
_LENGTH = {
    "/v1/chat/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
    "/tokenize": "max_tokens",
}
"""The field that bounds an answer, where there is no bound without it."""
_FEW_TOKENS = 3
_FEW_ANSWERS = 2
_TIMEOUT_S = 60
_NEED = {"top_logprobs": "logprobs", "stream_options": "stream", "tool_choice": "tools"}
_FORMS = ("response_format", "regex", "choices", "json_schema", "ebnf")


def tiny_server_config() -> EngineConfig:
    """A small model with vision, which fetches nothing from anywhere."""
    media = MediaConfig(allowed_hosts=("nobody.invalid",), isolation="thread")
    return EngineConfig(
        model=str(tiny_llava()), served_name="tiny", num_slots=4096, threads=1, media=media
    )


def explore(
    url: str, num_examples: int, number: int = 1, document: dict[str, Any] | None = None
) -> dict[str, list[str]]:
    """What goes wrong with about so many requests to a server, by operation.

    `num_examples` are made in all, eight times as many for routes that generate; the same
    `number` makes the same requests. The `document` is the server's own, if none is given.
    """
    told = document or httpx.get(f"{url}/openapi.json", timeout=_TIMEOUT_S).json()
    schema = schemathesis.openapi.from_dict(told)
    schema.config.update(base_url=url)
    operations = [found.ok() for found in schema.get_all_operations()]
    weights = [8 if one.path in GENERATING else 1 for one in operations]
    return {
        operation.label: wrong
        for operation, weight in zip(operations, weights, strict=True)
        if (
            wrong := _explore_one(
                operation, max(2, num_examples * weight // sum(weights)), number
            )
        )
    }


def _explore_one(operation: APIOperation, num_examples: int, number: int) -> list[str]:
    wrong: dict[str, None] = {}
    fits, does_not = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)

    @seed(number)
    @settings(
        max_examples=num_examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(fits, does_not))
    def ask(case: schemathesis.Case) -> None:
        case.body = _bounded(case.body, _LENGTH.get(operation.path))
        try:
            response = case.call(timeout=_TIMEOUT_S)
            case.validate_response(response, checks=CHECKS)
        except (Failure, FailureGroup) as failure:
            words = [str(one) for one in getattr(failure, "exceptions", [failure])]
            wrong[f"{' / '.join(words)}\n{case.as_curl_command()[:2000]}"] = None

    ask()
    return list(wrong)


def _bounded(body: Any, length: str | None = None) -> Any:
    """The body with few tokens and answers to generate, and mostly the model that is served."""
    if isinstance(body, list):
        return [_bounded(one) for one in body]
    if not isinstance(body, dict):
        return body
    found = {name: _bounded(value) for name, value in body.items()}
    if isinstance(found.get("model"), str) and len(found["model"]) % 4:
        found["model"] = "default"
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"):
        if _is_number(found.get(name)):
            found[name] = min(found[name], _FEW_TOKENS)
    for name in ("n", "best_of"):
        if _is_number(found.get(name)):
            found[name] = min(found[name], _FEW_ANSWERS)
    if length is not None:
        found.setdefault(length, _FEW_TOKENS)
    return found if len(found) % 3 == 0 else _agreeing(found)


def _agreeing(body: dict[str, Any]) -> dict[str, Any]:
    """The body without fields that would refuse each other, so that more gets to be served."""
    left_out = {name for name, asked in _NEED.items() if not body.get(asked)}
    left_out |= set([name for name in _FORMS if body.get(name) is not None][1:])
    if body.get("max_completion_tokens") is not None:
        left_out.add("max_tokens")
    return {name: value for name, value in body.items() if name not in left_out}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def main() -> None:
    """Ask a server of its own so many times, and print what went wrong."""
    num_examples = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with (
        Engine.from_config(tiny_server_config()) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        found = explore(server.url, num_examples, number)
    for label, wrong in found.items():
        sys.stdout.write(f"\n== {label}\n" + "\n--\n".join(wrong[:20]) + "\n")
    sys.stdout.write(f"\n{sum(map(len, found.values()))} wrong\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
