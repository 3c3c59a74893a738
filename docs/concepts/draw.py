"""Draws what the concept pages show: the real scheduler, traced programs and grammars.

No model is needed; grammars are drawn with the tokens of `tabletop`.

Usage: `python docs/concepts/draw.py` writes the SVG files and the drawings inside the pages;
with `--check` it writes nothing and fails if anything differs. A drawing inside a page stands
between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import mmserve as sgl
from mmserve.cli.constrained import EXAMPLE
from mmserve.constrained import GrammarCompiler
from mmserve.constrained.show import (
    Way,
    draw_picture,
    draw_text,
    drawn_in_turn,
    graph_of,
    walk,
)
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import Constraint, ForwardPlan, MediaSpan, Prompt, SamplingParams, SchedConfig
from mmserve.prompt import load_tokenizer
from mmserve.sched import Scheduler, SequenceSpec, SequenceUpdate
from mmserve.testing.fake_runner import FakeRunner

FOLDER = Path(__file__).parent
PAGES = ("prefix-sharing.md", "order-and-fairness.md", "constrained.md")

_VOCAB = 128
_MEDIA_ID = _VOCAB - 1
_NUM_PATCHES = 48
_EOS = 0
_SHORT = (100, 101, _EOS)
"""Every answer about a picture; others go on until they are cut."""

Part = Iterable[int] | tuple[str, int]


def _next_token(token_ids: list[int]) -> int:
    """What the model of these drawings says. Pure."""
    if _MEDIA_ID not in token_ids:
        return 102 + len(token_ids) % 24
    last = token_ids[-1]
    return _SHORT[_SHORT.index(last) + 1] if last in _SHORT[:-1] else _SHORT[0]


class Stage:
    """A scheduler, a runner that only hashes, and a clock that moves as its steps say."""

    def __init__(self, *, num_slots: int, **config: object) -> None:
        self._now_s = 0.0
        self.config = SchedConfig(**config)  # type: ignore[arg-type]
        self.sched = Scheduler(
            self.config,
            num_slots=num_slots,
            context_length=num_slots,
            vocab_size=_VOCAB,
            clock=lambda: self._now_s,
        )
        self.last: dict[int, SequenceUpdate] = {}
        self.started: list[int] = []
        self._runner = FakeRunner(num_slots, _VOCAB, rule=_next_token)
        self._num_added = 0
        self._num_prompt: dict[int, int] = {}

    def add(self, *parts: Part, num_new: int, client: str = "") -> int:
        """A sequence of token ids and (picture, tokens) pairs arrives; its number."""
        token_ids: list[int] = []
        spans: list[MediaSpan] = []
        for part in parts:
            if isinstance(part, tuple):
                name, num_tokens = part
                digest = name.encode().ljust(16, b".")
                spans.append(MediaSpan(digest, len(token_ids), num_tokens, "image"))
                token_ids += [_MEDIA_ID] * num_tokens
            else:
                token_ids += part
        number, self._num_added = self._num_added, self._num_added + 1
        prompt = Prompt(np.array(token_ids, dtype=np.int64), tuple(spans), "")
        sampling = SamplingParams(temperature=0.0, max_new_tokens=num_new)
        self._num_prompt[number] = prompt.num_tokens
        self.sched.add(
            SequenceSpec(
                sequence_id=number,
                prompt=prompt,
                sampling=sampling,
                seed=0,
                eos_token_ids=(_EOS,),
                client=client,
            )
        )
        for digest in self.sched.wanted():
            self.sched.provide(digest, {}, num_patches=_NUM_PATCHES)
        return number

    def plan(self) -> ForwardPlan:
        """Plan the next step; there has to be one."""
        plan = self.sched.plan()
        if plan is None:
            raise RuntimeError("nothing runs:\n" + self.sched.drawing("sched"))
        self.sched.verify()
        new = [row.sequence_id for row in plan.rows if row.sequence_id not in self.started]
        self.started += new
        return plan

    def land(self, plan: ForwardPlan) -> None:
        """Run a planned step."""
        sampled = self._runner.execute(plan)
        self._now_s += (sampled.encode_ms + sampled.forward_ms) / 1e3
        for update in self.sched.commit(sampled):
            self.last[update.sequence_id] = update
        self.sched.verify()

    def step(self) -> ForwardPlan:
        """Plan a step and run it."""
        plan = self.plan()
        self.land(plan)
        return plan

    def finish(self) -> None:
        """Steps until nobody is left."""
        while self.sched.counts().running or self.sched.counts().waiting:
            self.step()

    def tree(self) -> str:
        """What `mmserve show radix` prints."""
        return self.sched.drawing("radix")

    def told(self, plan: ForwardPlan) -> str:
        """A planned step in words, a line a row."""
        lines = [f"step {plan.step} computes {plan.num_tokens} tokens"]
        if plan.encode:
            lines[0] += f", encodes {len(plan.encode)} picture"
        for row in plan.rows:
            start, stop = row.start, row.start + len(row.token_ids)
            num_prompt = self._num_prompt[row.sequence_id]
            whose = f"its prompt of {num_prompt}" if start < num_prompt else "its answer"
            draws = ", draws a token" if row.sampling is not None else ""
            lines.append(f"  #{row.sequence_id}  [{start}, {stop}) of {whose}{draws}")
        return "\n".join(lines)

    def found(self, number: int) -> str:
        """What the prompt of an ended sequence found, a line a kind and outcome."""
        return "\n".join(
            f"  {use.num_tokens:>3} {use.kind:<6}{use.outcome}"
            for use in self.last[number].usage.cache
        )


SYSTEM = range(1, 7)
PICTURE = ("A", 12)
QUESTIONS = ([10, 11, 12, 13], [20, 21, 22, 23, 24], [30, 31, 32, 33, 34, 35])
FOURTH = [40, 41, 42, 43]
OTHER = range(50, 92)
NEXT = [60, 61, 62]


def sharing() -> dict[str, str]:
    """The worked timeline of `prefix-sharing.md`: drawings by name, an SVG among them."""
    stage = Stage(num_slots=64, chunk_tokens=16, max_step_tokens=32)
    shown: dict[str, str] = {}

    def show(time: int, *texts: str) -> None:
        shown[f"sharing {time}"] = "\n\n".join((*texts, stage.tree()))

    for question in QUESTIONS:
        stage.add(SYSTEM, PICTURE, question, num_new=5)
    show(1)
    plan = stage.plan()
    show(2, stage.told(plan))
    stage.land(plan)
    plan = stage.plan()
    show(3, stage.told(plan))
    stage.land(plan)
    stage.add(SYSTEM, PICTURE, FOURTH, num_new=5)
    plan = stage.plan()
    show(4, stage.told(plan))
    shown["sharing-tree.svg"] = stage.sched.drawing("radix", "svg")
    stage.land(plan)
    stage.finish()
    show(5)
    stage.add(OTHER, num_new=1)
    plan = stage.plan()
    while plan.rows[0].sampling is None:
        stage.land(plan)
        plan = stage.plan()
    show(6, stage.told(plan))
    stage.land(plan)
    again = stage.add(SYSTEM, PICTURE, QUESTIONS[0], NEXT, num_new=1)
    plan = stage.plan()
    stage.land(plan)
    show(7, stage.told(plan), f"#{again} was told\n{stage.found(again)}")
    _retract(stage, shown)
    shown["sharing-steps.svg"] = stage.sched.drawing("sched", "svg")
    return shown


def _retract(stage: Stage, shown: dict[str, str]) -> None:
    """Time 8: two answers grow until one of them has to make room, and end all the same."""
    for first in (70, 80):
        stage.add(SYSTEM, [first], num_new=32)
    plan = stage.plan()
    while not stage.sched.counts().retractions:
        stage.land(plan)
        plan = stage.plan()
    shown["sharing 8"] = stage.told(plan) + "\n\n" + stage.tree()
    stage.land(plan)
    back = stage.plan()
    while len(back.rows) == len(plan.rows) and stage.sched.counts().waiting:
        stage.land(back)
        back = stage.plan()
    shown["sharing 8 resumed"] = stage.told(back)
    stage.land(back)
    stage.finish()


WARM = range(1, 41)


def flood(*, fairness: bool) -> Stage:
    """Ten questions of one client about a cached text, and three of another who has none."""
    stage = Stage(
        num_slots=1024, max_running=2, quantum_tokens=20, decode_cost=1.0, fairness=fairness
    )
    stage.add(WARM, num_new=1, client="flood")
    stage.finish()
    for number in range(10):
        stage.add(WARM, [100 + number] * 3, num_new=4, client="flood")
    for number in range(3):
        stage.add([50 + number] * 12, num_new=4, client="cold")
    stage.finish()
    return stage


def order() -> dict[str, str]:
    """The drawings of `order-and-fairness.md`."""
    fair, local = flood(fairness=True), flood(fairness=False)
    return {
        "with shares": _steps(fair),
        "without shares": _steps(local),
        "shares-steps.svg": fair.sched.drawing("sched", "svg"),
    }


def _steps(stage: Stage) -> str:
    """The lanes of `mmserve show sched`, without its accounts."""
    lines = stage.sched.drawing("sched").splitlines()
    return "\n".join(line for line in lines if re.match(r"#\d|step +\d+ +\d", line))


@sgl.function
def judge(  # noqa: ANN201  a program as users write them
    s: sgl.ProgramState,
    picture: str,
    essay: str,
    aspects: tuple[str, ...] = ("clarity", "evidence"),
):
    """The program of `programs.md`: a choice, two judgements side by side, a grade."""
    s += sgl.user(sgl.image(picture) + "Essay: " + essay + "\nIs it about the picture?")
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    forks = s.fork(len(aspects))
    for fork, aspect in zip(forks, aspects, strict=True):
        fork += sgl.user(f"Judge its {aspect}.")
        fork += sgl.assistant(sgl.gen("judgement", stop="\n"))
    forks.join()
    s += sgl.user("Grade it:")
    s += sgl.assistant(sgl.gen("grade", regex="[A-D]"))


def programs() -> dict[str, str]:
    """The drawing of `programs.md`."""
    return {"program-graph.svg": judge.graph("svg")}


NAME = Constraint("regex", r'\{"place":"[^"]{1,12}","number":[0-9]{1,2}\}')
SAY = Constraint("choices", '["yes, a star", "yes, a circle", "no"]')


def constrained() -> dict[str, str]:
    """The drawings of `constrained.md`."""
    record = Held(EXAMPLE)
    odd = record.way("st", "orange", "small")
    return {
        "constrained-record.svg": draw_picture(EXAMPLE, record.graph, odd),
        "record": draw_text(EXAMPLE, record.graph, None),
        "record answer": _answer(
            draw_text(EXAMPLE, None, record.way("star", "orange", "small"))
        ),
        "record replaced": _answer(draw_text(EXAMPLE, None, odd)),
        "name": draw_text(NAME, Held(NAME).graph, None),
        "name answer": _answer(
            draw_text(NAME, None, Held(NAME).way('":"', "left", '","', "4", "2"))
        ),
        "choices": draw_text(SAY, Held(SAY).graph, Held(SAY).way("yes", " star")),
    }


class Held:
    """A constraint compiled for the tokens of `tabletop`."""

    def __init__(self, constraint: Constraint) -> None:
        tokens = load_tokenizer(Path(sgl.__file__).parent / "assets" / "tabletop")
        facts = {
            "eos_token_ids": (tokens.eos_token_id,),
            "vocab_size": 768,
            "special_ids": tokens.control_ids,
            "encode": tokens.encode_inside,
        }
        compiler = GrammarCompiler(tokens.pieces, **facts)
        self._vocabulary = Vocabulary(tokens.pieces, **facts)
        self._make = compiler.compile(constraint)
        self._automaton = compiler.kept()[0].automaton
        self.graph = graph_of(self._automaton, 24)

    def way(self, *drawn: str) -> Way:
        """The answer in which these tokens are drawn, and all others are forced."""
        token_ids = [self._vocabulary.ids[one.encode()][0] for one in drawn]
        return walk(
            self._make(),
            self._vocabulary,
            drawn_in_turn(token_ids),
            max_steps=len(token_ids) + 1,
            automaton=self._automaton,
        )


def _answer(drawing: str) -> str:
    """The part of a drawing from its answer on."""
    return drawing[drawing.index("answer  ") :]


def with_drawings(page: str, drawings: dict[str, str]) -> str:
    """A page with each drawing that it names put in. Pure."""
    for name, drawing in drawings.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.S)
        block = f"{begin}```text\n{drawing}\n```\n{end}"
        page = pattern.sub(lambda _, block=block: block, page)
    return page


def results() -> dict[Path, str]:
    """Every file that this script makes, with its text."""
    drawings = {**sharing(), **order(), **programs(), **constrained()}
    made = {FOLDER / name: text for name, text in drawings.items() if name.endswith(".svg")}
    for name in PAGES:
        path = FOLDER / name
        made[path] = with_drawings(path.read_text(encoding="utf-8"), drawings)
    return made


def main() -> int:
    """Write the files, or with --check tell which differ."""
    stale = [
        (path, text)
        for path, text in results().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(
            f"{path.name} is not what this script draws\n" for path, _ in stale
        )
        return len(stale)
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
