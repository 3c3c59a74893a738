"""Two pictures in one turn, compared: first each alone, then both together.

    python examples/two_picture_comparison.py [--url URL] [--model tabletop]

Pictures stand where they are appended, any number in a turn; their order counts.
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import scene

MODEL = "tabletop"
FEW, MORE = scene(1000001).image, scene(1000005).image
ROWS = [
    {"first": FEW, "second": MORE, "what": "objects"},
    {"first": MORE, "second": FEW, "what": "objects"},
    {"first": FEW, "second": MORE, "what": "triangles"},
]


@sgl.function
def compare(s, first, second, what):
    alone = s.fork(2)
    for f, picture in zip(alone, (first, second), strict=True):
        f += sgl.user(sgl.image(picture) + f"How many {what} are there?")
        f += sgl.assistant(sgl.gen("count", max_tokens=4))
    alone.join()
    s += sgl.user(sgl.image(first) + sgl.image(second) + f"Which picture has more {what}?")
    s += sgl.assistant(sgl.select("winner", ["picture 1", "picture 2", "equal"]))


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        states = compare.run_batch(ROWS, temperature=0, backend=backend)
        for row, state in zip(ROWS, states, strict=True):
            left, right = state["count"]
            print(f"{left} {row['what']} and {right}: {state['winner']}")


if __name__ == "__main__":
    main()
