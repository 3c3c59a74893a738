"""A ReAct agent: think, act, observe, until the model finishes.

    python examples/react_agent.py [--url URL] [--model smollm2-135m]

A regex keeps every action to one of three forms, so the program can always parse it. The tools
are a table to look things up in, and a calculator.
"""

from operator import add, mul, sub

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
ROWS = [{"question": f"How many legs do {n} have?"} for n in ("3 crabs", "12 dogs")]

LEGS = {"ant": 6, "cow": 4, "crab": 10, "dog": 4, "hen": 2, "spider": 8}
OPERATIONS = {"+": add, "-": sub, "*": mul}
ACTION = r" (lookup\[[a-z]{1,12}\]|calculate\[\d{1,6} [-+*] \d{1,6}\]|finish\[\d{1,9}\])"
SOLVED = "".join(
    f"Question: How many legs do {num} {animal}s have?\n"
    f"Thought: I look up {animal}.\nAction: lookup[{animal}]\nObservation: {LEGS[animal]}\n"
    f"Thought: I calculate {num} * {LEGS[animal]}.\nAction: calculate[{num} * {LEGS[animal]}]\n"
    f"Observation: {num * LEGS[animal]}\n"
    f"Thought: The answer is {num * LEGS[animal]}.\nAction: finish[{num * LEGS[animal]}]\n\n"
    for num, animal in ((4, "spider"), (7, "cow"))
)


def use(tool, argument):
    if tool == "lookup":
        return str(LEGS.get(argument, "unknown"))
    left, operation, right = argument.split()
    return str(OPERATIONS[operation](int(left), int(right)))


@sgl.function
def act(s, question, max_steps=5):
    s += SOLVED + f"Question: {question}\n"
    for i in range(max_steps):
        s += "Thought:" + sgl.gen(f"thought{i}", max_tokens=24, stop="\n") + "\nAction:"
        s += sgl.gen(f"action{i}", max_tokens=24, regex=ACTION)
        tool, argument = s[f"action{i}"].strip(" ]").split("[")
        if tool == "finish":
            s["answer"] = argument
            return
        s += f"\nObservation: {use(tool, argument)}\n"


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for state in act.run_batch(ROWS, temperature=0, backend=backend):
            print(state.text().removeprefix(SOLVED), end="\n\n")


if __name__ == "__main__":
    main()
