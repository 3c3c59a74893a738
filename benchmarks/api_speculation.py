"""Three fields out of a text through an OpenAI-compatible server, with and without speculation.

The server is `mmserve serve`'s own app with SmolLM2-135M behind it, the client the `openai`
package: calls and tokens are as the server counts them. Each row is a few-shot prompt that
shows the form, and three gens that a newline stops; greedy.

    completion   each gen a call, or one call whose surplus the later gens take
    chat         each gen in a turn of its own, or one turn parted by its constant texts
    mismatch     the program goes on otherwise than the model does: the surplus is lost
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import mmserve as sgl
from benchmarks.record import Record, report
from mmserve.engine import Engine
from mmserve.lang import Expr, Program, ProgramState
from mmserve.server import RunningServer

Body = Callable[..., None]
Fields = tuple[str, ...]

_SPEC_TOKENS = 48
_EXAMPLES = (
    ("Maria Lopez, 34, bakes bread in Madrid.", "Maria Lopez", "34", "Madrid"),
    ("Tom Brown is 52 and sells boats in Oslo.", "Tom Brown", "52", "Oslo"),
    ("In Paris, Anne Petit, aged 29, repairs clocks.", "Anne Petit", "29", "Paris"),
)
_TEXTS = (
    ("John Smith, 41, drives a bus in London.", "John Smith", "41", "London"),
    ("Lena Berg is 23 and paints houses in Berlin.", "Lena Berg", "23", "Berlin"),
    ("In Rome, Marco Rossi, aged 60, grows olives.", "Marco Rossi", "60", "Rome"),
    ("Kate Young, 37, teaches music in Dublin.", "Kate Young", "37", "Dublin"),
    ("Peter Novak is 45 and builds bridges in Prague.", "Peter Novak", "45", "Prague"),
    ("In Lisbon, Rita Costa, aged 31, writes books.", "Rita Costa", "31", "Lisbon"),
    ("Hans Maier, 58, brews beer in Munich.", "Hans Maier", "58", "Munich"),
    ("Emma White is 26 and designs hats in Boston.", "Emma White", "26", "Boston"),
)


def _form(name: str, age: str, city: str) -> str:
    return f"Name: {name}\nAge: {age}\nCity: {city}\n"


def _shots() -> str:
    return "".join(f"Text: {text}\n{_form(*fields)}\n" for text, *fields in _EXAMPLES)


def _field(name: str) -> Expr:
    return sgl.gen(name, stop="\n", max_tokens=16)


def completion(s: ProgramState, text: str) -> None:
    """Three gens of running text."""
    s += _shots() + f"Text: {text}\n"
    s += "Name:" + _field("name") + "\nAge:" + _field("age") + "\nCity:" + _field("city")


def mismatch(s: ProgramState, text: str) -> None:
    """The second constant text is not what the examples taught the model."""
    s += _shots() + f"Text: {text}\n"
    s += "Name:" + _field("name") + "\nYears:" + _field("age") + "\nCity:" + _field("city")


def _chat_head(s: ProgramState) -> None:
    s += sgl.system("You take three fields out of a text, in this form: Name, Age, City.")
    for text, *fields in _EXAMPLES:
        s += sgl.user(text) + sgl.assistant(_form(*fields))


def chat(s: ProgramState, text: str) -> None:
    """Three gens of one assistant turn."""
    _chat_head(s)
    s += sgl.user(text)
    s += sgl.assistant(
        "Name:" + _field("name") + "\nAge:" + _field("age") + "\nCity:" + _field("city")
    )


def chat_in_turns(s: ProgramState, text: str) -> None:
    """What a chat API without speculation needs: a question and a turn for each gen."""
    _chat_head(s)
    for name in ("name", "age", "city"):
        s += sgl.user(f"{text}\nOnly the {name}.") + sgl.assistant(_field(name))


def measure(backend: sgl.OpenAI, engine: Engine, program: Program) -> dict[str, Any]:
    """Calls, tokens, seconds and fields of all texts."""
    before, usage = engine.counters(), backend.token_usage
    tokens = usage.prompt_tokens, usage.completion_tokens
    start = time.perf_counter()
    rows = [{"text": text} for text, *_ in _TEXTS]
    states = program.run_batch(rows, backend=backend, temperature=0, num_threads=8)
    names = ("name", "age", "city")
    fields = [tuple(str(state[name]).strip() for name in names) for state in states]
    seconds = time.perf_counter() - start
    after = engine.counters()
    ended = [key for key in after if key.startswith("finished_total")]
    return {
        "calls": sum(after[key] - before.get(key, 0) for key in ended),
        "input_tokens": usage.prompt_tokens - tokens[0],
        "output_tokens": usage.completion_tokens - tokens[1],
        "seconds": round(seconds, 3),
        "fields": fields,
    }


def compare(
    backend: sgl.OpenAI, engine: Engine, name: str, plain: Body, speculative: Body
) -> dict[str, Any]:
    """One pair of programs, side by side."""
    without = measure(backend, engine, Program(plain))
    within = measure(backend, engine, Program(speculative, num_api_spec_tokens=_SPEC_TOKENS))
    one, other = without.pop("fields"), within.pop("fields")
    true = [tuple(fields) for _, *fields in _TEXTS]
    return {
        "workload": name,
        **{f"{key}_plain": value for key, value in without.items()},
        **{f"{key}_speculative": value for key, value in within.items()},
        "calls_ratio": round(without["calls"] / within["calls"], 3),
        "input_tokens_ratio": round(without["input_tokens"] / within["input_tokens"], 3),
        "equal_fields": _num_equal(one, other),
        "right_fields_plain": _num_equal(one, true),
        "right_fields_speculative": _num_equal(other, true),
        "fields": 3 * len(_TEXTS),
    }


def _num_equal(one: Sequence[Fields], other: Sequence[Fields]) -> int:
    pairs = zip(one, other, strict=True)
    return sum(a == b for row, twin in pairs for a, b in zip(row, twin, strict=True))


def main() -> None:
    """Parse flags, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the record there; - is stdout")
    flags = parser.parse_args()
    rows = []
    with Engine(model="smollm2-135m") as engine, RunningServer(engine) as server:
        client = {"base_url": f"{server.url}/v1", "api_key": "none"}
        model = engine.model.name
        texts = sgl.OpenAI(model, is_chat_model=False, **client)
        chats = sgl.OpenAI(model, is_chat_model=True, **client)
        rows.append(compare(texts, engine, "completion", completion, completion))
        rows.append(compare(texts, engine, "mismatch", mismatch, mismatch))
        rows.append(compare(chats, engine, "chat", chat_in_turns, chat))
    summary = {f"calls_ratio_{row['workload']}": row["calls_ratio"] for row in rows}
    summary |= {
        f"input_tokens_ratio_{row['workload']}": row["input_tokens_ratio"] for row in rows
    }
    summary["equal_fields_completion"] = rows[0]["equal_fields"] / rows[0]["fields"]
    report(Record(repeats=1, summary=summary, rows=rows), flags.json)


if __name__ == "__main__":
    main()
