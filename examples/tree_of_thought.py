"""Tree of thought: propose several next steps, value each, go on with the best.

    python examples/tree_of_thought.py [--url URL] [--model smollm2-135m]

Thoughts are sentences of a story, one fork for each. The value of a thought is how much
likelier it makes a happy end than a sad one: `select` scores both ends, and the program reads
their log-probabilities.
"""

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
ROWS = [
    {"start": "The queen had a garden in which nothing would grow."},
    {"start": "Nora lost her key on the way home."},
]
OPENERS = (" She", " It", " At last")
ENDS = [" In the end everybody was happy.", " In the end everybody was sad."]


def value(thought):
    happy, sad = thought.get_meta_info("end")["normalized_prompt_logprobs"]
    return happy - sad


@sgl.function
def tell(s, start, depth=2):
    s += start
    for _ in range(depth):
        thoughts = s.fork(len(OPENERS))
        for thought, opener in zip(thoughts, OPENERS, strict=True):
            with thought.var_scope("sentence"):
                thought += opener + sgl.gen(max_tokens=16, stop=".") + "."
            thought += sgl.select("end", ENDS)
        s += max(thoughts, key=value)["sentence"]


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for state in tell.run_batch(ROWS, temperature=0, backend=backend):
            print(state.text(), end="\n\n")


if __name__ == "__main__":
    main()
