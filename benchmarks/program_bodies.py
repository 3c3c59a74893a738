"""Programs of the kinds that the SGLang paper measures, written in the language.

Each returns all that the model wrote in it, so that answers can be compared. All answers are
greedy; branches differ by what is appended before them.
"""

from __future__ import annotations

from collections.abc import Sequence

import mmserve as sgl
from mmserve.lang import ProgramState

__all__ = [
    "answer_from_documents",
    "answer_in_a_token",
    "answer_with_search",
    "ask_about_clip",
    "ask_about_picture",
    "chat",
    "choose",
    "extract",
    "judge_essay",
    "live",
    "react",
    "think_in_trees",
    "write_by_skeleton",
]

RECORD_PATTERN = (
    r'\{"name": "[a-z]{3,8}", "age": [1-9][0-9]?, "town": "[a-z]{3,8}", '
    r'"is_member": (true|false), "visits": [0-9]{1,3}\}'
)
GRADE_PATTERN = r'\{"summary": "[a-z ]{8,24}", "grade": "[ABCD][+-]?"\}'
RECORD_SCHEMA = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "maxLength": 12},
        "price": {"type": "integer", "minimum": 0, "maximum": 9999},
        "colour": {"enum": ["red", "green", "blue", "grey"]},
    },
    "required": ["item", "price", "colour"],
    "additionalProperties": False,
}


@sgl.function
def choose(s: ProgramState, shots: str, question: str, options: Sequence[str]) -> list[str]:
    """Few-shot classification: solved examples, one question, the likeliest option."""
    s += shots + question + "\nAnswer:"
    s += sgl.select("answer", list(options))
    return [s["answer"]]


@sgl.function
def answer_in_a_token(s: ProgramState, shots: str, question: str) -> list[str]:
    """A quiz: solved examples, one question with its options, a single token of answer."""
    s += shots + question + "\nAnswer:" + sgl.gen("answer", max_tokens=1)
    return [s["answer"]]


@sgl.function
def react(s: ProgramState, examples: str, task: str, observations: Sequence[str]) -> list[str]:
    """An agent that thinks, acts and sees what came of it, some times over."""
    s += examples + "\nTask: " + task
    for step, observation in enumerate(observations):
        s += f"\nThought {step}:" + sgl.gen(f"thought{step}", max_tokens=12)
        s += f"\nAction {step}:" + sgl.gen(f"action{step}", max_tokens=6)
        s += f"\nObservation {step}: " + observation
    s += "\nFinal answer:" + sgl.gen("answer", max_tokens=8)
    steps = range(len(observations))
    return [
        *(s[f"{kind}{step}"] for step in steps for kind in ("thought", "action")),
        s["answer"],
    ]


@sgl.function
def live(s: ProgramState, world: str, memories: str, event: str) -> list[str]:
    """One decision of a generative agent: the world, what it remembers, what happens."""
    s += sgl.system(world)
    s += sgl.user(memories + "\nNow: " + event + "\nWhat do you do?")
    s += sgl.assistant(sgl.gen("deed", max_tokens=12))
    return [s["deed"]]


@sgl.function
def think_in_trees(s: ProgramState, rules: str, riddle: str, width: int) -> list[str]:
    """Tree of thought: plans, a way on from each, a vote on each of these, one answer."""
    s += sgl.system(rules)
    s += sgl.user(riddle + "\nMake a plan, follow it, and rate what you find.")
    plans = s.fork(width)
    leaves = []
    for number, plan in enumerate(plans):
        plan += sgl.assistant(f"Plan {number}:" + sgl.gen("plan", max_tokens=12))
        plan += sgl.user("Follow the plan.")
        ways = plan.fork(2)
        for turn, way in zip(("first", "second"), ways, strict=True):
            way += sgl.assistant(f"My {turn} try:" + sgl.gen("try", max_tokens=10))
            way += sgl.user("Rate it.") + sgl.assistant(
                "From bad to good:" + sgl.select("rate", [" 1", " 2", " 3"])
            )
        leaves += list(ways)
    found = [*(plan["plan"] for plan in plans), *(leaf["try"] for leaf in leaves)]
    rates = [leaf["rate"] for leaf in leaves]
    best = leaves[max(range(len(leaves)), key=lambda place: (rates[place], -place))]
    s += sgl.assistant("The best try:" + best["try"] + sgl.gen("answer", max_tokens=8))
    return [*found, *rates, s["answer"]]


@sgl.function
def write_by_skeleton(s: ProgramState, rules: str, topic: str, num_points: int) -> list[str]:
    """Skeleton of thought: an outline, all its points at once, then an end."""
    s += sgl.system(rules)
    s += sgl.user("Outline an answer: " + topic)
    s += sgl.assistant(sgl.gen("outline", max_tokens=20))
    points = s.fork(num_points)
    for number, point in enumerate(points):
        point += sgl.user(f"Write out point {number}.")
        point += sgl.assistant(sgl.gen("point", max_tokens=20))
    written = [point["point"] for point in points]
    s += sgl.user("The points:\n" + "\n".join(written) + "\nEnd it.")
    s += sgl.assistant(sgl.gen("end", max_tokens=8))
    return [s["outline"], *written, s["end"]]


@sgl.function
def judge_essay(s: ProgramState, rules: str, essay: str, qualities: Sequence[str]) -> list[str]:
    """Branch, solve, merge: an essay judged by several qualities at once, then graded."""
    s += sgl.system(rules)
    s += sgl.user("Essay: " + essay + "\nIs it about its subject?")
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    judges = s.fork(len(qualities))
    for judge, quality in zip(judges, qualities, strict=True):
        judge += sgl.user(f"Judge its {quality}.")
        judge += sgl.assistant(sgl.gen("judgement", max_tokens=16))
    said = [judge["judgement"] for judge in judges]
    s += sgl.user("They say:\n" + "\n".join(said) + "\nSum up and grade.")
    s += sgl.assistant(sgl.gen("grade", max_tokens=64, regex=GRADE_PATTERN, ignore_eos=False))
    return [s["related"], *said, s["grade"]]


@sgl.function
def extract(s: ProgramState, rules: str, document: str) -> list[str]:
    """Two records from one document, one by a pattern and one by a schema."""
    s += sgl.system(rules)
    s += sgl.user(document)
    s += sgl.assistant(sgl.gen("person", max_tokens=80, regex=RECORD_PATTERN, ignore_eos=False))
    s += sgl.user("And what was bought?")
    s += sgl.assistant(
        sgl.gen("item", max_tokens=60, json_schema=RECORD_SCHEMA, ignore_eos=False)
    )
    return [s["person"], s["item"]]


@sgl.function
def chat(s: ProgramState, rules: str, questions: Sequence[str], max_tokens: int) -> list[str]:
    """A conversation of some turns."""
    s += sgl.system(rules)
    for number, question in enumerate(questions):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(f"answer{number}", max_tokens=max_tokens))
    return [s[f"answer{number}"] for number in range(len(questions))]


@sgl.function
def answer_from_documents(
    s: ProgramState, documents: Sequence[str], questions: Sequence[str]
) -> list[str]:
    """Several documents, then questions about them, each in a branch of its own."""
    s += sgl.user_begin()
    for number, document in enumerate(documents):
        s += f"Document {number}: {document}\n"
    readers = s.fork(len(questions))
    for reader, question in zip(readers, questions, strict=True):
        reader += question + sgl.user_end()
        reader += sgl.assistant(sgl.gen("answer", max_tokens=12))
    return [reader["answer"] for reader in readers]


@sgl.function
def answer_with_search(
    s: ProgramState, examples: str, question: str, passages: Sequence[str]
) -> list[str]:
    """Retrieval: a search query is written, passages come, the question is answered."""
    s += examples + "\nQuestion: " + question + "\nQuery:" + sgl.gen("query", max_tokens=8)
    s += "\n" + "\n".join(passages) + "\nReason:" + sgl.gen("reason", max_tokens=12)
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=6)
    return [s["query"], s["reason"], s["answer"]]


@sgl.function
def ask_about_picture(s: ProgramState, picture: bytes, question: str) -> list[str]:
    """One question about a picture that others ask about, too."""
    s += sgl.user(sgl.image(picture) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))
    return [s["answer"]]


@sgl.function
def ask_about_clip(
    s: ProgramState, frames: Sequence[bytes], questions: Sequence[str]
) -> list[str]:
    """Several questions about one clip, each in a branch of its own."""
    s += sgl.user_begin() + sgl.video(list(frames))
    watchers = s.fork(len(questions))
    for watcher, question in zip(watchers, questions, strict=True):
        watcher += question + sgl.user_end()
        watcher += sgl.assistant(sgl.gen("answer", max_tokens=8))
    return [watcher["answer"] for watcher in watchers]
