"""Which outside tests there are, the model each one is run on, and whether it tests knowledge.

frontend   sglang 0.5.3's `sglang.test.test_programs`, unchanged
programs   ours (`inside/programs.py`), through the same client: pictures, choices, batches
kits       sglang 0.5.23's `sglang.test.kits`, mixed into a TestCase; one has a prompt of ours

A test needs knowledge if a correct server of a weak model may fail it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CHECKS", "CLIENTS", "SMOLLM2", "TABLETOP", "Check"]

CLIENTS = ("frontend", "programs", "kits")
TABLETOP = "tabletop"
SMOLLM2 = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One outside test.

    `options` are the attributes that a kit's TestCase gets, of which `prompt` replaces the
    kit's prompt, or the arguments of a program. `@` in a name begins a variant of a test.
    `why_not` is empty, or says why the test cannot be run here at all.
    """

    client: str
    name: str
    model: str = SMOLLM2
    needs_knowledge: bool = False
    needs_pictures: bool = False
    limit_s: float = 120.0
    options: Mapping[str, Any] = field(default_factory=dict)
    why_not: str = ""


def _frontend(names: str, **values: Any) -> list[Check]:  # noqa: ANN401 - fields of Check
    return [Check(client="frontend", name=name, **values) for name in names.split()]


def _programs(names: str, **values: Any) -> list[Check]:  # noqa: ANN401 - fields of Check
    return [Check(client="programs", name=name, **values) for name in names.split()]


def _kit(kit: str, tests: str, **values: Any) -> list[Check]:  # noqa: ANN401 - fields of Check
    """Tests of one mixin; `kit` is `module.Mixin`."""
    return [Check(client="kits", name=f"{kit}.test_{test}", **values) for test in tests.split()]


_UNCHECKED = {"check_answer": False}
_PICTURES: dict[str, Any] = {"model": TABLETOP, "needs_pictures": True}
_LETTER = {"prompt": "Write a letter to a friend."}
_ABORTS = {"abort_all_max_new_tokens": 2000, "abort_all_sleep": 1.0}

_FRONTEND = [
    *_frontend("mt_bench stream parallel_decoding regex dtype_gen"),
    *_frontend("select expert_answer parallel_encoding", options=_UNCHECKED),
    *_frontend("few_shot_qa decode_int tool_use react", needs_knowledge=True),
    *_frontend("decode_json decode_json_regex", needs_knowledge=True),
    *_frontend("image_qa", needs_knowledge=True, **_PICTURES),
    *_frontend("gen_min_new_tokens", why_not="imports torch and the original's server"),
    *_frontend(
        "hellaswag_select completion_speculative chat_completion_speculative",
        why_not="needs a download or another service",
    ),
]

_PROGRAMS = [
    *_programs("image_qa image_stream image_batch image_fork", **_PICTURES),
    *_programs("image_select_token_length image_select_greedy", **_PICTURES),
    *_programs(
        "image_select_unconditional",
        why_not="the client sends the picture beside ids without a place for it: a 400",
    ),
    *_programs("select_token_length select_greedy select_unconditional"),
    *_programs("batch stream fork_join fork_gather upkeep"),
]

_REGEX = "regex_constrained_kit.RegexConstrainedMixin"
_EBNF = "ebnf_constrained_kit.EBNFConstrainedMixin"
_STRESS = "basic_scheduler_stress_kit.BasicSchedulerStressMixin"
_DECODE = "basic_decode_correctness_kit.BasicDecodeCorrectnessMixin"
_STOPS = "matched_stop_kit.MatchedStopMixin"
_SHAPES = "email greeting number phone date hex_color custom_log_format"

_KITS = [
    *_kit(
        "basic_api_contract_kit.BasicAPIContractMixin",
        "health health_generate get_server_info get_model_info openai_chat_completion"
        " openai_completion",
        model=TABLETOP,
    ),
    *_kit(
        "json_mode_kit.JSONModeMixin",
        "json_mode_response json_mode_with_streaming",
        model=TABLETOP,
    ),
    *_kit(_REGEX, " ".join(f"regex_generate_{name}" for name in _SHAPES.split())),
    *_kit(_REGEX, "regex_generate_complex_json"),
    *_kit(_EBNF, " ".join(f"ebnf_generate_{name}" for name in _SHAPES.split())),
    *_kit(_EBNF, "ebnf_generate_all_optional_function_params"),
    # Its grammar allows what it then refuses: the model has to give all three pairs in order.
    *_kit(_EBNF, "ebnf_generate_complex_json", needs_knowledge=True),
    *_kit(
        "json_constrained_kit.JSONConstrainedMixin",
        "json_generate json_invalid json_openai mix_json_and_other",
    ),
    *_kit("abort_timeout_kit.AbortAllMixin", "abort_all", options=_ABORTS),
    *_kit(_STOPS, "finish_length finish_stop_regex_str"),
    # Its prompt asks for a story, in which a weak model may never end a line.
    *_kit(_STOPS, "finish_stop_str", needs_knowledge=True),
    *_kit(_STOPS, "finish_stop_str@letter", options=_LETTER),
    *_kit(_STOPS, "finish_stop_eos", needs_knowledge=True),
    *_kit(_STRESS, "streaming_response concurrent_requests", needs_knowledge=True),
    *_kit(_STRESS, "long_prompt", needs_knowledge=True, limit_s=240.0),
    *_kit(
        _DECODE,
        "capital_france basic_math color_completion ascii_ratio no_repetition_blowup"
        " determinism_temp_zero max_token_one",
        needs_knowledge=True,
    ),
    *_kit(
        "prefix_cache_branching_kit.PrefixCacheBranchingMixin",
        "prefix_cache_branching",
        why_not="wants a second, equal request to hit nothing",
    ),
    *_kit(
        "abort_timeout_kit.WaitingTimeoutMixin",
        "waiting_timeout",
        why_not="wants the original's error object and settings",
    ),
    *_kit(
        "abort_timeout_kit.RunningTimeoutTwoWaveMixin",
        "running_timeout_no_crash",
        why_not="wants the original's error object and settings",
    ),
]

CHECKS: Sequence[Check] = (*_FRONTEND, *_PROGRAMS, *_KITS)
