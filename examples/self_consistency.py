"""Self-consistency: sample several ways of thinking, and take the answer most of them reach.

    python examples/self_consistency.py [--url URL] [--model smollm2-135m]

One `gen` with `n=8` gives a list of eight samples of one prompt, which is computed once. The
seed is fixed, so that the votes are the same every time.
"""

from collections import Counter

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
ROWS = [
    {"question": "Lia has 10 coins. She spends 4. How many coins are left?"},
    {"question": "A hen lays 4 eggs on Monday and 5 on Tuesday. How many eggs are there?"},
    {"question": "Max reads 3 pages on Monday and 8 on Tuesday. How many pages does he read?"},
]
SOLVED = (
    ("A box has 4 pens. Ann adds 3 pens. How many pens are there?", "4 + 3 = 7"),
    ("Tom has 9 sweets. He eats 2. How many are left?", "9 - 2 = 7"),
    ("There are 5 red cups and 6 blue cups. How many cups are there?", "5 + 6 = 11"),
    ("There are 8 cakes. 5 are sold. How many are left?", "8 - 5 = 3"),
)


@sgl.function
def solve(s, question):
    for solved, sum_ in SOLVED:
        s += f"Question: {solved}\nAnswer: {sum_}\n\n"
    s += f"Question: {question}\nAnswer:"
    s += sgl.gen(
        "sums", n=8, temperature=0.6, seed=7, max_tokens=16, regex=r" \d+ [-+] \d+ = \d+"
    )
    s["votes"] = Counter(sum_.split(" = ")[1] for sum_ in s["sums"])
    s["answer"] = s["votes"].most_common(1)[0][0]


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        states = solve.run_batch(ROWS, backend=backend)
        for row, state in zip(ROWS, states, strict=True):
            print(f"{row['question']}\n  samples:", ";".join(state["sums"]))
            print(f"  answer {state['answer']}, with {max(state['votes'].values())} of 8 votes")


if __name__ == "__main__":
    main()
