"""Routes that tell of the server as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.describe.schema import (
    JSON,
    Operation,
    Schema,
    Surface,
    array,
    flag,
    integer,
    json_answer,
    opened,
    query,
    text,
    word,
)

__all__ = ["SURFACE"]

_COUNT = integer(0, 2**53)
_PLAIN: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}

_model_info = Operation(
    summary="The model's facts.",
    answers=json_answer(
        model_path=text(),
        tokenizer_path=text(),
        is_generation=flag(),
        has_image_understanding=flag(),
        model_type=text(),
        context_length=_COUNT,
    ),
)
_server_info = Operation(
    summary="Settings, version, scheduler and counters; keys are not among them.",
    answers=json_answer(
        version=text(),
        model_path=text(),
        context_length=_COUNT,
        num_slots=_COUNT,
        kernels=array(text()),
        settings=_OBJECT,
        scheduler=_OBJECT,
        counters=_OBJECT,
    ),
)
_ready: dict[str, Schema] = {JSON: opened({"status": word("ready")})}


def _drawing(what: str) -> dict[str, Operation]:
    return {
        "get": Operation(
            summary=f"A drawing of {what}.",
            parameters=(query("format", word("text", "svg")),),
            answers={"text/plain": _PLAIN, "image/svg+xml": _PLAIN},
            refusals=("bad",),
        )
    }


SURFACE: Surface = {
    "/model_info": {"get": _model_info},
    "/get_model_info": {"get": _model_info},
    "/server_info": {"get": _server_info},
    "/get_server_info": {"get": _server_info},
    "/health": {
        "get": Operation(summary="Whether requests can be served.", answers=_ready),
    },
    "/health_generate": {
        "get": Operation(
            summary="Whether a token can be generated.", answers=_ready, refusals=("left",)
        ),
    },
    "/livez": {
        "get": Operation(
            summary="Whether the server answers.", answers=json_answer(status=word("alive"))
        )
    },
    "/metrics": {
        "get": Operation(
            summary="Counters, gauges and histograms in Prometheus' text format.",
            answers={"text/plain": _PLAIN},
        )
    },
    "/show/constrained": _drawing("the compiled grammars"),
    "/show/radix": _drawing("the tree of cached prefixes"),
    "/show/radix.json": {
        "get": Operation(
            summary="The tree of cached prefixes, the queue and memory, for programs.",
            answers=json_answer(
                num_nodes=_COUNT,
                num_tokens=_COUNT,
                num_pinned_tokens=_COUNT,
                num_evicted_tokens=_COUNT,
                num_hidden_namespaces=_COUNT,
                nodes=array(_OBJECT),
                slots=_OBJECT,
                features=_OBJECT,
                queue=_OBJECT,
            ),
        )
    },
    "/show/sched": _drawing("the last steps"),
    "/show/vision": _drawing("the encoded pictures and frames"),
}
