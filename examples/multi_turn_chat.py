"""A chat of several turns about one picture: each turn goes on from the last.

    python examples/multi_turn_chat.py [--url URL] [--model tabletop]

The picture stands in the first turn only. It is encoded once, and every turn computes just its
own tokens: what came before is in the cache, as the numbers show.
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import scene

MODEL = "tabletop"
ROWS = [
    {
        "picture": scene(1000005).image,
        "questions": ("How many objects are there?", "How many of them are orange?"),
    },
    {
        "picture": scene(1000001).image,
        "questions": ("Where is the red triangle?", "What size is it?"),
    },
]


@sgl.function
def chat(s, picture, questions):
    for i, question in enumerate(questions):
        s += sgl.user(sgl.image(picture) + question if i == 0 else question)
        s += sgl.assistant(sgl.gen(f"answer{i}", max_tokens=16))


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for row in ROWS:
            state = chat.run(**row, temperature=0, backend=backend)
            for i, question in enumerate(row["questions"]):
                meta = state.get_meta_info(f"answer{i}")
                cached = f"{meta['cached_tokens']} of {meta['prompt_tokens']} tokens cached"
                print(f"{question}\n  {state[f'answer{i}']}   ({cached})")


if __name__ == "__main__":
    main()
