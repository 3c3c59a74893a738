"""Routes that tell of the server as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.describe import schema as shape

__all__ = ["SURFACE"]

_COUNT = shape.integer(0, 2**53)
_PLAIN: shape.Schema = {"type": "string"}
_OBJECT: shape.Schema = {"type": "object"}

_model_info = shape.Operation(
    summary="The model's facts.",
    answers=shape.json_answer(
        model_path=shape.text(),
        tokenizer_path=shape.text(),
        is_generation=shape.flag(),
        has_image_understanding=shape.flag(),
        model_type=shape.text(),
        context_length=_COUNT,
    ),
)
_server_info = shape.Operation(
    summary="Settings, version, scheduler and counters; keys are not among them.",
    answers=shape.json_answer(
        version=shape.text(),
        model_path=shape.text(),
        context_length=_COUNT,
        num_slots=_COUNT,
        kernels=shape.array(shape.text()),
        settings=_OBJECT,
        scheduler=_OBJECT,
        counters=_OBJECT,
    ),
)
_ready: dict[str, shape.Schema] = {shape.JSON: shape.opened({"status": shape.word("ready")})}


def _drawing(what: str) -> dict[str, shape.Operation]:
    return {
        "get": shape.Operation(
            summary=f"A drawing of {what}.",
            parameters=(shape.query("format", shape.word("text", "svg")),),
            answers={"text/plain": _PLAIN, "image/svg+xml": _PLAIN},
            refusals=("bad",),
        )
    }


SURFACE: shape.Surface = {
    "/model_info": {"get": _model_info},
    "/get_model_info": {"get": _model_info},
    "/server_info": {"get": _server_info},
    "/get_server_info": {"get": _server_info},
    "/health": {
        "get": shape.Operation(summary="Whether requests can be served.", answers=_ready),
    },
    "/health_generate": {
        "get": shape.Operation(
            summary="Whether a token can be generated.", answers=_ready, refusals=("left",)
        ),
    },
    "/livez": {
        "get": shape.Operation(
            summary="Whether the server answers.",
            answers=shape.json_answer(status=shape.word("alive")),
        )
    },
    "/metrics": {
        "get": shape.Operation(
            summary="Counters, gauges and histograms in Prometheus' text format.",
            answers={"text/plain": _PLAIN},
        )
    },
    "/show/constrained": _drawing("the compiled grammars"),
    "/show/radix": _drawing("the tree of cached prefixes"),
    "/show/radix.json": {
        "get": shape.Operation(
            summary="The tree of cached prefixes, the queue and memory, for programs.",
            answers=shape.json_answer(
                num_nodes=_COUNT,
                num_tokens=_COUNT,
                num_pinned_tokens=_COUNT,
                num_evicted_tokens=_COUNT,
                num_hidden_namespaces=_COUNT,
                nodes=shape.array(_OBJECT),
                slots=_OBJECT,
                features=_OBJECT,
                queue=_OBJECT,
            ),
        )
    },
    "/show/sched": _drawing("the last steps"),
    "/show/vision": _drawing("the encoded pictures and frames"),
}
