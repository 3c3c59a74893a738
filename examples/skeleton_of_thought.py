"""Skeleton of thought: write the points of an answer first, then all of them out in parallel.

    python examples/skeleton_of_thought.py [--url URL] [--model smollm2-135m]

The skeleton is one answer with three holes, each kept to a line by a regex. The points are then
written out by forks, which run as one batch, so the answer takes the time of its longest part.
"""

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
ROWS = [
    {"question": "How can I sleep better?"},
    {"question": "How do I keep a house plant alive?"},
]
NUM_POINTS = 3


@sgl.function
def answer(s, question):
    with s.copy() as skeleton:
        skeleton += sgl.user(f"{question} Give three short tips.")
        with skeleton.assistant():
            for i in range(NUM_POINTS):
                skeleton += f"{i + 1}."
                skeleton += sgl.gen(f"point{i}", max_tokens=12, regex=r" [A-Z][a-z ,'-]+[.:\n]")
                skeleton += "\n"
        points = [skeleton[f"point{i}"].strip(" .:\n") for i in range(NUM_POINTS)]
    parts = s.fork(NUM_POINTS)
    for part, point in zip(parts, points, strict=True):
        part += sgl.user(f"{question} Explain this tip in one sentence: {point}.")
        part += sgl.assistant(sgl.gen("sentence", max_tokens=24, stop="."))
    parts.join()
    return list(zip(points, s["sentence"], strict=True))


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for row in ROWS:
            state = answer.run(**row, temperature=0, backend=backend)
            print(row["question"])
            for point, sentence in state.ret_value:
                print(f"  {point}\n    {sentence}.")


if __name__ == "__main__":
    main()
