"""The essay judge: select, an early end, one fork for each question, and a regex.

    python examples/essay_judge.py [--url URL] [--model tabletop]

The judge looks whether the essay's subject is in the picture at all, asks three questions in
parallel, and marks what the essay leaves out. Its report is forced into the shape of JSON.
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import scene

MODEL = "tabletop"
ROWS = [
    {"picture": scene(1000005).image, "subject": "star", "essay": essay}
    for essay in (
        "I see 3 objects on a table. At the top there is a star, as orange as the sun.",
        "A lonely star, red like a tomato, near the top of the table.",
    )
] + [{"picture": scene(1000010).image, "subject": "circle", "essay": "Ode to a round thing."}]

ASPECTS = ("How many objects are there?", "Where is the {}?", "What colour is the {}?")
THING = r'\{"place":"[a-z ]+","size":"[a-z]+","colour":"[a-z]+","shape":"[a-z]+"\}'
REPORT = rf'\{{"objects":\[{THING}(,{THING})*\],"number":(null|\d+)\}}'


@sgl.function
def judge(s, picture, subject, essay):
    s += sgl.user(sgl.image(picture) + f"Is there a {subject}?")
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    if s["related"] == "no":
        s["grade"] = "off the subject"
        return
    forks = s.fork(len(ASPECTS))
    for f, aspect in zip(forks, ASPECTS, strict=True):
        f += sgl.user(aspect.format(subject))
        f += sgl.assistant(sgl.gen("fact", max_tokens=8))
    forks.join()
    s["missing"] = [fact for fact in s["fact"] if fact not in essay]
    s["grade"] = "ABCD"[len(s["missing"])]
    s += sgl.user("Describe the picture as JSON.")
    s += sgl.assistant(sgl.gen("report", max_tokens=200, regex=REPORT))


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for row, state in zip(
            ROWS, judge.run_batch(ROWS, temperature=0, backend=backend), strict=True
        ):
            print(f"{row['essay']}\n  grade: {state['grade']}")
            if "report" in state:
                print(f"  missing: {state['missing']}\n  picture: {state['report']}")


if __name__ == "__main__":
    main()
