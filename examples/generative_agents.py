"""Generative agents: each remembers, goes somewhere and speaks; all act at once in each round.

    python examples/generative_agents.py [--url URL] [--model smollm2-135m]

One program is one agent's turn; `run_batch` gives all agents theirs. Everybody then tells a
neighbour, so news travels round, and with a small model it becomes rumour on the way.
"""

from _backend import open_backend

import mmserve as sgl

MODEL = "smollm2-135m"
ROWS = [
    {"name": "Mira", "memories": ("There is a dance at the mill.",)},
    {"name": "Otto", "memories": ("The fish are at the river.",)},
    {"name": "Pia", "memories": ("Plums are cheap at the market.",)},
]
PLACES = [" mill", " river", " market"]
MANNERS = """Ann heard:
- The shop sells new hats.
Ann goes to the shop and says: The shop sells new hats.

Tom heard:
- The shop sells new hats.
- A bear is at the bridge.
Tom goes to the bridge and says: A bear is at the bridge.

"""


@sgl.function
def live(s, name, memories):
    s += MANNERS + f"{name} heard:\n" + "".join(f"- {memory}\n" for memory in memories)
    s += f"{name} goes to the" + sgl.select("place", PLACES)
    s += " and says:" + sgl.gen("words", max_tokens=16, stop="\n")


def main(argv=None, backend=None):
    agents = ROWS
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for number in range(1, 4):
            states = live.run_batch(agents, temperature=0, backend=backend)
            print(f"Round {number}")
            for agent, state in zip(agents, states, strict=True):
                print(f"  {agent['name']} at the{state['place']}:{state['words']}")
            heard = [states[i - 1]["words"].strip() for i in range(len(agents))]
            agents = [
                {**agent, "memories": tuple(dict.fromkeys((*agent["memories"], news)))}
                for agent, news in zip(agents, heard, strict=True)
            ]


if __name__ == "__main__":
    main()
