"""JSON from a picture: a schema holds while the model writes, and the value comes parsed.

    python examples/json_extraction.py [--url URL] [--model tabletop]

`json_schema` takes a dict, a JSON text or a pydantic class.
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import SCENE_SCHEMA, scene

MODEL = "tabletop"
ROWS = [{"picture": scene(seed).image} for seed in (1000001, 1000005)]


@sgl.function
def extract(s, picture):
    s += sgl.user(sgl.image(picture) + "Describe the picture as JSON.")
    s += sgl.assistant(sgl.gen("scene", max_tokens=200, json_schema=SCENE_SCHEMA))


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for state in extract.run_batch(ROWS, temperature=0, backend=backend):
            found = state.value("scene")
            print(f"{len(found['objects'])} objects, number {found['number']}")
            for thing in found["objects"]:
                print("  {place}: {size} {colour} {shape}".format(**thing))


if __name__ == "__main__":
    main()
