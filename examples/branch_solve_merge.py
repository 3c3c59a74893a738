"""Branch, solve, merge: a judgement split into questions, answered apart, and put together.

    python examples/branch_solve_merge.py [--url URL] [--model tabletop]

Two witnesses describe a picture. The judge branches on the questions they disagree about,
solves each in a fork of its own, where `select` says which answer the picture makes likelier,
and merges the verdicts into points.
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import scene

MODEL = "tabletop"
ROWS = [
    {
        "picture": scene(1000005).image,
        "claims": {
            "How many objects are there?": ("3", "5"),
            "Where is the number?": ("top left", "bottom right"),
            "What colour is the star?": ("orange", "orange"),
            "What shape is the red object?": ("circle", "square"),
        },
    },
    {
        "picture": scene(1000001).image,
        "claims": {
            "How many objects are there?": ("3", "2"),
            "Where is the triangle?": ("top", "bottom left"),
        },
    },
]


@sgl.function
def judge(s, picture, claims):
    s += sgl.user_begin() + sgl.image(picture)
    disputed = {question: pair for question, pair in claims.items() if len(set(pair)) == 2}
    branches = s.fork(len(disputed))
    for branch, (question, pair) in zip(branches, disputed.items(), strict=True):
        branch += question + sgl.user_end()
        branch += sgl.assistant(sgl.select("verdict", list(pair)))
    branches.join()
    witnesses = zip(*disputed.values(), strict=True)
    s["points"] = [sum(map(str.__eq__, claims, s["verdict"])) for claims in witnesses]


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for state in judge.run_batch(ROWS, backend=backend):
            first, second = state["points"]
            print(f"The picture says {', '.join(state['verdict'])}.")
            print(f"  witness 1: {first} right, witness 2: {second} right")


if __name__ == "__main__":
    main()
