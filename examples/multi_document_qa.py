"""Questions over several documents: one fork reads each, and a join puts them in order.

    python examples/multi_document_qa.py [--url URL] [--model smollm2-135m]

`join("concate_and_append")` appends what the forks appended, in their order, to the parent. The
documents come out of the cache when the next question is about the same ones.
"""

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
KEYS = (
    "The red key opens the cellar.",
    "The blue key opens the boat shed.",
    "The brass key opens the old piano.",
    "The small key opens the tea box.",
)
ROWS = [
    {"documents": KEYS, "question": "What does the blue key open?"},
    {"documents": KEYS, "question": "What does the brass key open?"},
    {"documents": KEYS, "question": "What does the small key open?"},
]


@sgl.function
def ask(s, documents, question):
    s += "Notes about the house:\n"
    readers = s.fork(len(documents))
    readers += lambda i: f"{i + 1}. {documents[i]}\n"
    readers.join("concate_and_append")
    s += "\nQuestion: What does the red key open?\nAnswer: The red key opens the cellar.\n"
    s += f"\nQuestion: {question}\nAnswer:" + sgl.gen("answer", max_tokens=16, stop="\n")


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for row in ROWS:
            state = ask.run(**row, temperature=0, backend=backend)
            cached = state.get_meta_info("answer")["cached_tokens"]
            print(f"{row['question']}\n {state['answer']}   ({cached} tokens cached)")


if __name__ == "__main__":
    main()
