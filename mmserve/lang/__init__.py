"""The language: Python programs over a model that sees pictures and clips.

    @function          s += user(image(p) + "Which?")     appending submits
    def f(s, p): ..    s += assistant(gen("x"))           state["x"] waits

    program -> state (queue of statements) -> backend (engine here, or server over HTTP)

Owns states, forks and batches; knows an engine only as `core.Client`. For users' programs
and the front door.
"""

from mmserve.lang.backends import Anthropic, ClientBackend, LiteLLM, OpenAI, RuntimeEndpoint
from mmserve.lang.choices import (
    ChoicesDecision,
    ChoicesMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from mmserve.lang.expressions import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    raw,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from mmserve.lang.forks import ForkGroup
from mmserve.lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR, Expr
from mmserve.lang.program import Program, function
from mmserve.lang.runtime import Runtime
from mmserve.lang.settings import (
    flush_cache,
    get_server_info,
    global_config,
    set_default_backend,
)
from mmserve.lang.state import ProgramState

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "Anthropic",
    "ChoicesDecision",
    "ChoicesMethod",
    "ClientBackend",
    "Expr",
    "ForkGroup",
    "LiteLLM",
    "OpenAI",
    "Program",
    "ProgramState",
    "Runtime",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
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
