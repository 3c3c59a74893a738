"""The essay judge: select, fork, join by hand, and a regex-constrained grade.

    python examples/essay_judge.py [--model tabletop]

`tabletop` has only learnt table-top scenes, so its judgements of essays are no judgements; the
program shows the flow. Give a bigger LLaVA with --model for sensible text.
"""

import argparse

import mmserve as sgl
from mmserve.testing import scene


@sgl.function
def judge(s, picture, essay):
    s += sgl.user(sgl.image(picture) + "Essay: " + essay + "\nIs the essay about the picture?")
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    if s["related"] == "no":
        return
    forks = s.fork(3)
    for f, d in zip(forks, ["clarity", "originality", "evidence"], strict=True):
        f += sgl.user(f"Judge its {d}.") + sgl.assistant(
            sgl.gen("judgement", max_tokens=64, stop="END")
        )
    s += sgl.user("Summarise:\n" + "\n".join(f["judgement"] for f in forks))
    s += sgl.assistant(
        sgl.gen("grade", regex=r'\{"summary": "[\w\d\s.]{1,80}", "grade": "[ABCD][+-]?"\}')
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tabletop")
    flags = parser.parse_args()
    with sgl.Engine(model=flags.model) as engine:
        state = judge.run(
            picture=scene(7).image,
            essay="A table with a few things on it.",
            temperature=0,
            backend=engine,
        )
        print(state.text())


if __name__ == "__main__":
    main()
