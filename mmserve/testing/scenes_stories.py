"""What happens in a clip: one change to one object, and questions about it."""

import dataclasses
import random
from dataclasses import dataclass

from mmserve.testing.scenes_questions import Question, name_uniquely
from mmserve.testing.scenes_words import spoken
from mmserve.testing.scenes_world import COLOURS, PLACES, Layout, Thing, sample_thing

__all__ = ["EVENTS", "MAX_FRAMES", "MIN_FRAMES", "Story", "ask_story", "sample_story"]

MIN_FRAMES, MAX_FRAMES = 4, 8
EVENTS = ("moved", "appeared", "disappeared", "turned")
_STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


@dataclass(frozen=True, slots=True)
class Story:
    """The ground truth of a clip, frame by frame.

    `others` stand still. `path[k]` is the acting thing in frame k + 1, None while it is away.
    `frame` (1-based) is the first that differs from frame 1. `outcome` is the direction of a
    move, the new colour of a thing that turned, else empty.
    """

    event: str
    others: tuple[Thing, ...]
    path: tuple[Thing | None, ...]
    frame: int
    outcome: str = ""

    @property
    def actor(self) -> Thing:
        """The acting thing as it is first seen."""
        return next(thing for thing in self.path if thing is not None)

    @property
    def num_moves(self) -> int:
        """In how many frames something differs from the frame before."""
        return sum(a != b for a, b in zip(self.path, self.path[1:], strict=False))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout of every frame."""
        return tuple(_arrange((*self.others, thing)) for thing in self.path)


def _arrange(things: tuple[Thing | None, ...]) -> Layout:
    present = [thing for thing in things if thing is not None]
    return Layout(tuple(sorted(present, key=lambda thing: PLACES.index(thing.place))))


def sample_story(rng: random.Random) -> Story:
    """A story of 4 to 8 frames with at most five objects. Changes: `rng`."""
    num_frames = rng.randint(MIN_FRAMES, MAX_FRAMES)
    event = rng.choice(EVENTS)
    frame = rng.randint(2, num_frames)
    first, *cells = rng.sample(range(len(PLACES)), rng.randint(1, 5))
    actor = sample_thing(PLACES[first], rng)
    before, after = frame - 1, num_frames - frame + 1
    outcome = ""
    there: list[Thing | None] = [actor] * before
    away: list[Thing | None] = [None] * after
    if event == "appeared":
        path = [None] * before + [actor] * after
    elif event == "disappeared":
        path = there + away
    elif event == "turned":
        outcome = rng.choice([colour for colour in COLOURS if colour != actor.colour])
        path = there + [dataclasses.replace(actor, colour=outcome)] * after
    else:
        outcome, stops = _sample_walk(first, after, rng)
        stops += stops[-1:] * (after - len(stops))
        path = there + [dataclasses.replace(actor, place=PLACES[stop]) for stop in stops]
        cells = [cell for cell in cells if cell not in stops]
    others = tuple(sample_thing(PLACES[cell], rng) for cell in sorted(cells))
    return Story(event, others, tuple(path), frame, outcome)


def _sample_walk(start: int, num_frames: int, rng: random.Random) -> tuple[str, list[int]]:
    """A direction and the one or two cells walked to from `start`."""
    row, column = divmod(start, 3)
    ways = [
        way for way, (dy, dx) in _STEPS.items() if 0 <= row + dy < 3 and 0 <= column + dx < 3
    ]
    way = rng.choice(ways)
    dy, dx = _STEPS[way]
    stops = [start + 3 * dy + dx]
    fits_twice = 0 <= row + 2 * dy < 3 and 0 <= column + 2 * dx < 3
    if fits_twice and num_frames > 1 and rng.random() < 0.5:
        stops.append(start + 2 * (3 * dy + dx))
    return way, stops


def ask_story(story: Story, rng: random.Random) -> tuple[Question, ...]:
    """Every question the story answers, one wording each. Changes: `rng`."""
    frame = str(story.frame)
    asked = [
        Question("change", spoken("change", rng), _change(story)),
        Question("count_end", spoken("count_end", rng), str(len(story.layouts[-1].things))),
        Question("count_start", spoken("count_start", rng), str(len(story.layouts[0].things))),
    ]
    what = _name_actor(story, rng)
    if story.event == "moved":
        asked.append(Question("direction", spoken("direction", rng, what=what), story.outcome))
        if story.num_moves == 1:
            asked.append(Question("moved_in", spoken("moved_in", rng, what=what), frame))
    else:
        kind = f"{story.event}_in"
        asked.append(Question(kind, spoken(kind, rng, what=what), frame))
    return tuple(asked)


def _name_actor(story: Story, rng: random.Random) -> str:
    """Words that fit only the acting thing, or "an object"."""
    hidden = "colour" if story.event == "turned" else ""
    everyone = _arrange((*story.others, story.actor))
    name = name_uniquely(everyone, story.actor, rng, hidden=hidden)
    if name is None or rng.random() < 0.25:
        return rng.choice(("an object", "one object"))
    return name


def _change(story: Story) -> str:
    ending = f" {story.outcome}" if story.outcome else ""
    return f"{story.actor.phrase} {story.event}{ending}"
