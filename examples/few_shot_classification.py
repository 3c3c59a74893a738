"""Few-shot classification: a handful of examples, then `select` picks the likeliest label.

    python examples/few_shot_classification.py [--url URL] [--model smollm2-135m]

The shots are computed once for the whole batch. No text is generated: the labels' own
probabilities decide, so the answer is always one of them.
"""

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
SHOTS = (
    ("The soup was cold and the waiter rude.", " bad"),
    ("What a lovely evening!", " good"),
    ("They lost my coat.", " bad"),
    ("Best cake in town.", " good"),
)
ROWS = [
    {"review": "I loved every bite."},
    {"review": "The room was dirty and loud."},
    {"review": "The view made our day."},
    {"review": "The chair broke under me."},
]


@sgl.function
def classify(s, review):
    for text, label in SHOTS:
        s += f"Review: {text}\nVerdict:{label}\n\n"
    s += f"Review: {review}\nVerdict:" + sgl.select("verdict", [" good", " bad"])


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        states = classify.run_batch(ROWS, backend=backend)
        for row, state in zip(ROWS, states, strict=True):
            print(f"{state['verdict'].strip():5}{row['review']}")


if __name__ == "__main__":
    main()
