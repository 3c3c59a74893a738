"""Many questions about one picture: decoded once, encoded once, its tokens computed once.

python examples/many_questions.py [--url URL] [--model tabletop]
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import scene

MODEL = "tabletop"
PICTURE = scene(7)
ROWS = [
    {"picture": PICTURE.image, "question": q.question}
    for q in PICTURE.questions
    if not q.history and q.other_image is None
][:8]


@sgl.function
def ask(s, picture, question):
    s += sgl.user(sgl.image(picture) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=64))


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        states = ask.run_batch(ROWS, temperature=0, backend=backend)
        for row, state in zip(ROWS, states, strict=True):
            meta = state.get_meta_info("answer")
            print(f"{row['question']}\n  {state['answer']}")
            print(f"  {meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached")
        if hasattr(backend, "counters"):  # an engine here, not a server
            counters = backend.counters()
            print(f"pictures decoded: {counters['media_decodes_total']:.0f}")
            print(f"pictures encoded: {counters['encoded_items_total']:.0f}")


if __name__ == "__main__":
    main()
