"""What each counter, gauge and histogram in `/metrics` means."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["HELP", "help_of"]

HELP: Mapping[str, str] = {
    "engine_up": "Whether the engine's process serves: 1, or 0 while another is started.",
    "engine_restarts_total": "Engine processes started in place of one that ended or hung.",
    "slots": "Tokens of KV that the device holds: free, cached and held together.",
    "slots_free": "Slots that hold nothing.",
    "slots_cached": "Slots whose KV nobody uses now; reused on a hit, evicted when needed.",
    "slots_held": "Slots that running sequences use.",
    "feature_tokens": "Tokens of encoded pictures and frames kept on the device.",
    "feature_bytes": "Bytes of encoded pictures and frames kept on the device.",
    "running": "Sequences that hold KV now.",
    "waiting": "Sequences accepted that have not started, or were retracted.",
    "steps_total": "Forward passes.",
    "tokens_computed_total": "Tokens computed in all steps, of prompts and of answers.",
    "prompt_tokens_computed_total": "Prompt tokens computed; again after a retraction counts.",
    "prompt_tokens_cached_total": "Prompt tokens of ended sequences that were hits.",
    "prompt_tokens_total": (
        "Prompt tokens of ended sequences by kind and outcome: hit, or why not. never_seen: not"
        " known; evicted: was cached; namespace: cached for another salt; order: the picture is"
        " cached behind other tokens; boundary: cached where a match may not end, such as the"
        " last token, whose logits are needed."
    ),
    "generated_tokens_total": "Tokens drawn for answers.",
    "forced_tokens_total": "Tokens that answers had to have, added without being drawn.",
    "replaced_tokens_total": "Tokens of answers that gave way when forced text was added.",
    "jumps_total": "Times that forced text was added to an answer.",
    "encoded_items_total": "Pictures and frames that went through the vision tower.",
    "early_items_total": "Of encoded_items_total, those that were only hinted at by then.",
    "early_items_used_total": "Of early_items_total, those that a request came for in time.",
    "retractions_total": "Times that a running sequence lost its KV to others, to wait again.",
    "finished_total": "Sequences ended, by the reason that their caller heard.",
    "media_fetches_total": "Downloads of pictures and clips.",
    "media_decodes_total": "Pictures decoded, and passes over clips.",
    "media_preprocesses_total": "Pictures and frames resized and normalised for the model.",
    "media_prepared_total": "Pictures and clips fetched and identified because of a hint.",
    "grammars": "Compiled grammars kept now.",
    "grammar_bytes": "Bytes of compiled grammars kept now, by estimate.",
    "grammar_waiting": "Requests that wait for their grammar now; they hold nothing else.",
    "grammars_compiled_total": "Grammars compiled.",
    "grammar_hits_total": (
        "Requests that found their grammar compiled, or being compiled for another request."
    ),
    "grammar_compile_ms_total": (
        "Milliseconds that workers spent on grammars, those refused included."
    ),
    "grammar_refusals_total": (
        "Requests refused for their grammar. invalid: it cannot be enforced; too_large: its"
        " text is over the limit; timeout: it was not compiled in time; busy: too many others"
        " waited; broken: the compiler failed."
    ),
    "sched_info": "Always 1; the labels are the scheduler's settings.",
    "recent_prompt_tokens": "Prompt tokens of the latest requests, a window of at most 256.",
    "recent_hit_tokens": "Of recent_prompt_tokens, those that were hits.",
    "recent_optimal_hit_tokens": (
        "Of recent_prompt_tokens, the most that any order of these requests could have hit."
    ),
    "client_queue_wait_ms": (
        "Milliseconds from arrival to the first step, quantiles of a client's latest 512 waits."
        ' Client "" is everybody who gave no name.'
    ),
    "client_started_total": "Sequences of a client that have had their first step.",
    "client_service_tokens_total": (
        "Service charged to a client, in prefill tokens: tokens computed, tokens generated,"
        " patches encoded and milliseconds of media decoding, shared work split."
    ),
    "client_running": "Sequences of a client that hold KV now.",
    "client_waiting": "Sequences of a client that wait now.",
    "files": "Uploaded files that can be named by id now.",
    "file_bytes": "Bytes of uploaded files kept; what one caller sent twice counts once.",
    "file_uploads_total": "Files uploaded.",
    "file_evictions_total": "Uploaded files that left to make room for others.",
    "file_expirations_total": "Uploaded files that have expired.",
    "responses": "Stored responses that can be named by id now.",
    "response_bytes": "Bytes of stored responses; what several continue counts once.",
    "response_evictions_total": "Stored responses that left to make room for others.",
    "response_expirations_total": "Stored responses that have expired.",
    "open_requests": "HTTP requests under way, of those that max_open_requests counts.",
    "http_requests_total": "HTTP responses by route and status.",
    "request_errors_total": "HTTP requests that ended with an error before any news, by code.",
    "requests_total": (
        "HTTP requests that have ended, by route, status and reason: the code of an error, else"
        " how its answer ended (stop, length, abort), else ok. Status none: the client left."
    ),
    "tokens_total": (
        "Tokens of HTTP requests by route and kind: prompt, of them cached, image and video;"
        " completion, of them forced. A prompt with several answers counts once."
    ),
    "time_to_first_token_seconds": (
        "From the arrival of a request to the first token of its answer."
    ),
    "inter_token_seconds": (
        "Between two tokens of an answer; those that come together share the time evenly."
    ),
    "request_seconds": (
        "From the arrival of a request that generates to the end of its answer."
    ),
    "queue_seconds": "From the acceptance of a sequence to its first step.",
    "stage_seconds": (
        "Spent for a sequence by stage: fetch, decode, preprocess, encode, queue, prefill,"
        " decode_text. Media stages count only where they took time."
    ),
}
"""By Prometheus name, without the `mmserve_` prefix."""


def help_of(name: str) -> str:
    """What a counter or gauge means; its own words, where nothing is written down. Pure."""
    return HELP.get(name) or f"{name.removesuffix('_total').replace('_', ' ')}."
