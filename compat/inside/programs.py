"""Our programs through the outside client: `python programs.py URL NAME OPTIONS`.

The file `scene.json` of the working directory holds a picture, questions and their answers:
{"image": path, "questions": [{"question", "answer", "choices"}, ...]}. The model is known to
answer them rightly, so another answer is the fault of the way.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import sglang as sgl
from sglang.lang.chat_template import ChatTemplate, register_chat_template

_METHODS = {
    "token_length": sgl.token_length_normalized,
    "greedy": sgl.greedy_token_selection,
    "unconditional": sgl.unconditional_likelihood_normalized,
}
_COPIED = "red blue green gold red blue green gold red blue green"
_WORDS = [" a red house", " gold", " table", " blue"]
_STARTS = ["One day", "The old ship", "Water is", "In the city", "She said", "My cat is"]
_NUM_FORKS = 3


@sgl.function
def ask(s, image, question):  # noqa: ANN001, ANN201 - the client reads the signature
    """One question about a picture."""
    s += sgl.user(sgl.image(image) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=32, temperature=0))


@sgl.function
def choose(s, image, question, choices, method):  # noqa: ANN001, ANN201 - as above
    """One question with its answers given."""
    s += sgl.user(sgl.image(image) + question)
    s += sgl.assistant(sgl.select("answer", choices, choices_method=_METHODS[method]))


@sgl.function
def copy_on(s, method):  # noqa: ANN001, ANN201 - as above
    """The word that goes on with a row that repeats itself."""
    s += _COPIED + sgl.select("word", _WORDS, choices_method=_METHODS[method])


@sgl.function
def ask_all(s, image, questions):  # noqa: ANN001, ANN201 - as above
    """Many questions in forks that share a picture."""
    s += sgl.user_begin() + sgl.image(image)
    forks = s.fork(len(questions))
    for k, question in enumerate(questions):
        forks[k] += question + sgl.user_end()
        forks[k] += sgl.assistant(sgl.gen("answer", max_tokens=32, temperature=0))
    forks.join()


@sgl.function
def go_on(s, start):  # noqa: ANN001, ANN201 - as above
    """Greedy text after a start."""
    s += start + sgl.gen("text", max_tokens=8, temperature=0)


@sgl.function
def branches(s, mode):  # noqa: ANN001, ANN201 - as above
    """Forks with a generation each, joined in `mode`, and a generation after them."""
    s += "A list:"
    forks = s.fork(_NUM_FORKS)
    for k in range(_NUM_FORKS):
        forks[k] += f"\n{k}." + sgl.gen("text", max_tokens=6, temperature=0)
    forks.join(mode)
    s += "\nThe end:" + sgl.gen("after", max_tokens=6, temperature=0)


def scene() -> tuple[str, list[dict[str, Any]]]:
    """The picture's path and its questions."""
    value = json.loads(Path("scene.json").read_text())
    return value["image"], value["questions"]


def same(found: object, expected: object) -> None:
    """Raise AssertionError, saying both, unless they are equal."""
    if found != expected:
        message = f"{found!r} instead of {expected!r}"
        raise AssertionError(message)


def image_qa() -> None:
    """A picture by path, one question after the other."""
    image, asked = scene()
    found = [ask.run(image=image, question=one["question"])["answer"] for one in asked]
    same(found, [one["answer"] for one in asked])


def image_stream() -> None:
    """The pieces of a streamed answer about a picture join to the answer."""
    image, asked = scene()
    for one in asked:
        state = ask.run(image=image, question=one["question"], stream=True)
        same("".join(state.text_iter("answer")), one["answer"])


def image_batch() -> None:
    """All questions at once, from threads."""
    image, asked = scene()
    rows = [{"image": image, "question": one["question"]} for one in asked]
    states = ask.run_batch(rows, num_threads=8)
    same([state["answer"] for state in states], [one["answer"] for one in asked])


def image_fork() -> None:
    """A fork for each question; the join gathers the answers in order."""
    image, asked = scene()
    state = ask_all.run(image=image, questions=[one["question"] for one in asked])
    same(state["answer"], [one["answer"] for one in asked])


def image_select(method: str) -> None:
    """The right one among given answers about a picture, by one of the client's rules."""
    image, asked = scene()
    limited = [one for one in asked if one["choices"]]
    found = [
        choose.run(image, one["question"], one["choices"], method)["answer"] for one in limited
    ]
    same(found, [one["answer"] for one in limited])


def select(method: str) -> None:
    """The likeliest text, options of one token and of several, by one of the client's rules."""
    same(copy_on.run(method)["word"], " gold")


def batch() -> None:
    """A batch from threads gives what one run after the other gives."""
    alone = [go_on.run(start=start)["text"] for start in _STARTS]
    states = go_on.run_batch([{"start": start} for start in _STARTS], num_threads=6)
    same([state["text"] for state in states], alone)


def stream() -> None:
    """Streamed pieces, of the whole text and of one variable, join to the text."""
    for start in _STARTS:
        whole = go_on.run(start=start)
        same("".join(go_on.run(start=start, stream=True).text_iter()), whole.text())
        piece = go_on.run(start=start, stream=True).text_iter("text")
        same("".join(piece), whole["text"])


def fork_gather() -> None:
    """Joining by variables gives a list of one value for each fork."""
    state = branches.run(mode="gather_variable")
    same([len(state["text"]), state.text()], [_NUM_FORKS, f"A list:\nThe end:{state['after']}"])


def fork_join() -> None:
    """Joining by text appends what each fork added, in order."""
    text = branches.run(mode="concate_and_append").text()
    places = [text.find(mark) for mark in ("A list:", "\n0.", "\n1.", "\n2.", "\nThe end:")]
    same([place >= 0 for place in places], [True] * len(places))
    same(places, sorted(places))


def upkeep() -> None:
    """Calls beside generation: the cache, the settings, a prefix computed ahead."""
    backend = sgl.global_config.default_backend
    sgl.flush_cache()
    backend.cache_prefix("A list:")
    same(len(sgl.get_server_info()["internal_states"]), 1)


PROGRAMS = {
    "image_qa": image_qa,
    "image_stream": image_stream,
    "image_batch": image_batch,
    "image_fork": image_fork,
    **{f"image_select_{rule}": partial(image_select, rule) for rule in _METHODS},
    **{f"select_{rule}": partial(select, rule) for rule in _METHODS},
    "batch": batch,
    "stream": stream,
    "fork_gather": fork_gather,
    "fork_join": fork_join,
    "upkeep": upkeep,
}


def main() -> None:
    """Run the program; whatever it raises is the result."""
    url, name, options = sys.argv[1:]
    turns = {role: (f"<|{role}|>", "<|end|>") for role in ("system", "user", "assistant")}
    register_chat_template(
        ChatTemplate(name="tabletop", default_system_prompt=None, role_prefix_and_suffix=turns)
    )
    template = "tabletop" if name.startswith("image") else None
    sgl.set_default_backend(sgl.RuntimeEndpoint(url, chat_template_name=template))
    PROGRAMS[name](**json.loads(options))


if __name__ == "__main__":
    main()
