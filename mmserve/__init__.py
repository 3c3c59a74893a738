"""mmserve: a serving engine for programs over image and video language models.

`import mmserve as sgl` gives the language; programs written for SGLang run by changing that
line. `sgl.Engine` is the engine in this process; only it imports torch.
"""

from typing import TYPE_CHECKING, Any

from mmserve.core import errors
from mmserve.lang import (
    REGEX_BOOL,
    REGEX_FLOAT,
    REGEX_INT,
    REGEX_STR,
    Anthropic,
    LiteLLM,
    OpenAI,
    ProgramState,
    Runtime,
    RuntimeEndpoint,
    assistant,
    assistant_begin,
    assistant_end,
    flush_cache,
    function,
    gen,
    gen_int,
    gen_string,
    get_server_info,
    global_config,
    greedy_token_selection,
    image,
    raw,
    select,
    separate_reasoning,
    set_default_backend,
    system,
    system_begin,
    system_end,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
    user_begin,
    user_end,
    video,
)

if TYPE_CHECKING:
    from mmserve.engine import Engine

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "Anthropic",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "ProgramState",
    "Runtime",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "errors",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "raw",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]


_NOT_HERE = {
    "VertexAI": "use RuntimeEndpoint or Engine",
    "pin": "prefixes are kept by themselves; f.cache() computes one early",
}
"""Names that programs written for SGLang may use, and what to use instead."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name == "Engine":
        from mmserve.engine import Engine

        return Engine
    hint = f": {_NOT_HERE[name]}" if name in _NOT_HERE else ""
    raise AttributeError(f"module 'mmserve' has no attribute {name!r}{hint}")
