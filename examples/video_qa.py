"""Questions about a clip: its frames are decoded and encoded once, forks ask side by side.

    python examples/video_qa.py [--url URL] [--model tabletop]

A clip stands in a turn like a picture; `num_frames` says how many frames are taken, evenly.
"""

from _backend import open_backend

import mmserve as sgl
from mmserve.testing import clip

MODEL = "tabletop"
QUESTIONS = (
    "What changed?",
    "How many objects are there at the start?",
    "How many objects are there at the end?",
)
ROWS = [{"video": clip(seed).mp4, "num_frames": 6} for seed in (1000001, 1000002)]


@sgl.function
def watch(s, video, num_frames):
    s += sgl.user_begin() + sgl.video(video, num_frames)
    forks = s.fork(len(QUESTIONS))
    for f, question in zip(forks, QUESTIONS, strict=True):
        f += question + sgl.user_end()
        f += sgl.assistant(sgl.gen("answer", max_tokens=16))
    forks.join()


def main(argv=None, backend=None):
    with open_backend(__doc__, MODEL, argv, backend) as backend:
        for number, state in enumerate(
            watch.run_batch(ROWS, temperature=0, backend=backend), start=1
        ):
            print(f"Clip {number}")
            for question, answer in zip(QUESTIONS, state["answer"], strict=True):
                print(f"  {question} {answer}")


if __name__ == "__main__":
    main()
