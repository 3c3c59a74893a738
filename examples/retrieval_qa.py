"""Questions answered from a passage that a retriever finds.

    python examples/retrieval_qa.py [--url URL] [--model smollm2-135m]

The retriever weighs shared words by how rare they are among the passages. It is plain Python
inside the program: a program is a function, and may call what it likes.
"""

from math import log
from re import findall

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
PASSAGES = (
    "The lighthouse was built in 1872. Its lamp is lit at dusk.",
    "A ticket for the ferry costs 4 coins. It leaves at noon.",
    "The museum shows old maps. It is closed on Monday.",
    "The kiosk sells red kites. It opens at sunrise.",
)
ROWS = [
    {"question": "When was the lighthouse built?"},
    {"question": "What does a ferry ticket cost?"},
    {"question": "When is the museum closed?"},
    {"question": "What does the kiosk sell?"},
]


def words(text):
    return set(findall(r"\w+", text.lower()))


def retrieve(question):
    def weight(word):
        return log(len(PASSAGES) / sum(word in words(passage) for passage in PASSAGES))

    return max(PASSAGES, key=lambda text: sum(map(weight, words(text) & words(question))))


@sgl.function
def ask(s, question):
    s["passage"] = retrieve(question)
    s += "Text: The school has a garden. It was planted in 1990.\n"
    s += "Question: When was the garden planted?\nAnswer: in 1990\n\n"
    s += f"Text: {s['passage']}\nQuestion: {question}\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=12, stop="\n")


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        states = ask.run_batch(ROWS, temperature=0, backend=backend)
        for row, state in zip(ROWS, states, strict=True):
            print(f"{row['question']}\n {state['answer']}   <- {state['passage']}")


if __name__ == "__main__":
    main()
