"""The last steps can be looked at, in a terminal and in a browser."""

from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.sched.books.accounts import Waits
from mmserve.sched.books.report import SchedReport
from mmserve.sched.show.chart import draw_steps
from mmserve.sched.show.gantt import draw_gantt
from mmserve.sched.show.lanes import Waiter
from mmserve.sched.show.timeline import StepRecord
from mmserve.sched.updates import SchedCounts

SVG = "{http://www.w3.org/2000/svg}"


def counts(**values) -> SchedCounts:
    """Counts that are 0 but for those given."""
    names = SchedCounts.__dataclass_fields__
    return SchedCounts(**{**dict.fromkeys(names, 0), "finished": {"stop": 2}, **values})


def record(step, *facts, **values) -> StepRecord:
    """A step of 11 ms; facts as in `RowFacts`."""
    times = {"start_s": step * 0.011, "plan_ms": 0.5, "encode_ms": 2.5, "forward_ms": 8.0}
    return StepRecord(**{**times, **values}, step=step, facts=facts)


EXAMPLE = [
    record(1, (1, "alice", 0.0, 36, 9, 0, None), num_patches=64, waiting=1),
    record(2, (1, "alice", 0.0, 0, 0, 1, None), (2, "bob", 0.005, 0, 16, 0, None)),
    record(3, (1, "alice", 0.0, 0, 0, 1, "stop"), retracted=(2,), waiting=1),
    record(4, (2, "bob", 0.005, 15, 1, 0, "error")),
]


def test_the_chart_of_steps():
    """A line a sequence, a column a step, digits of what each step took, a line a client."""
    text = draw_steps(counts(steps=4, waiting=1), EXAMPLE, [Waiter(3, "bob", 0.04)])
    assert text.splitlines() == [
        "step 4: 0 running, 1 waiting, 2 ended, 0 retracted",
        "slots 0 = 0 free + 0 cached + 0 held",
        "",
        "step                1  4",
        "#1      alice      |=.. | 36= 9# 2.",
        "#2      bob        |-#x!| 15= 17# 0.",
        "#3      bob        |   -| waits",
        "                 ms|9999| 9 = 11",
        "             tokens|5911| 9 = 17",
        "            patches|9   | 9 = 64",
        "            waiting|9 9 | 9 = 1",
        "= most from cache  # computed  . decoded  - waited  x retracted  ! failed",
        "",
        "client             cached computed  decoded",
        "alice                  36        9        2",
        "bob                    15       17        0",
    ]


def test_before_the_first_step():
    """With nothing to show, the counts are shown, and those that wait."""
    text = draw_steps(counts(waiting=40), [], [Waiter(n, "", 0.0) for n in range(32)])
    assert text.splitlines()[0] == "step 0: 0 running, 40 waiting, 2 ended, 0 retracted"
    assert text.splitlines()[-1] == "... 27 more wait"
    ElementTree.fromstring(draw_gantt(counts(waiting=40), [], []))


def test_clients_of_the_report():
    """The busiest client is first, and one that has no row in these steps is there too."""
    report = SchedReport(
        waits={"bob": Waits(3, 1.5, 2000.0)},
        service={"zoe": 5000.0, "bob": 40.0},
        running={"bob": 1},
        waiting={"zoe": 12},
    )
    lines = draw_steps(counts(), EXAMPLE, (), report).splitlines()
    clients = [line.split() for line in lines[lines.index("") + 1 :]][-3:]
    assert clients == [
        ["zoe", "0", "0", "0", "12", "0", "5,000"],
        ["bob", "15", "17", "0", "0", "1", "40", "2/2000"],
        ["alice", "36", "9", "2", "0", "0", "0"],
    ]


def test_only_the_last_steps_fit():
    """Forty columns, however many steps there are."""
    records = [record(step, (1, "a", 0.0, 0, 0, 1, None)) for step in range(1000, 1256)]
    lines = draw_steps(counts(), records).splitlines()
    assert lines[3].split() == ["step", "1216", "1255"]
    assert lines[4] == f"#1      a          |{'.' * 40}| 0= 0# 40."


def titles(svg: str) -> list[str]:
    """Words that appear over a shape, in the order of drawing."""
    root = ElementTree.fromstring(svg)
    return [one.text for shape in root for one in shape if one.tag == SVG + "title"]


def test_the_picture_says_numbers():
    """Steps, rows, waits, retractions and ends have a title with what they stand for."""
    found = titles(draw_gantt(counts(slots_total=100), EXAMPLE, [Waiter(3, "bob", 0.03)]))
    wanted = [
        "step 1: planned 0.50 ms, encoded 2.5 ms (64 patches), forward 8.0 ms; "
        "1 rows, 9 tokens; 0 running, 1 waiting",
        "#1 alice: 36 tokens from the cache, 9 computed in step 1",
        "#1 alice: 2 tokens decoded in steps 2 to 3",
        "#1 alice ends: stop",
        "#2 bob waits",
        "#2 bob is retracted",
        "#2 bob ends: error",
        "#3 bob waits",
    ]
    assert [title for title in wanted if title not in found] == []


def test_pauses_are_cut_short():
    """A pause of an hour takes little room and is marked with its length."""
    records = [
        record(step, (1, "a", 0.0, 0, 0, 1, None), start_s=step * 0.011 + 3600 * (step > 4))
        for step in range(10)
    ]
    svg = draw_gantt(counts(), records)
    assert "nothing ran for 60 min" in titles(svg)
    root = ElementTree.fromstring(svg)
    steps = [
        float(box.get("width"))
        for box in root.iter(SVG + "rect")
        if any("10 tokens decoded" in (one.text or "") for one in box)
    ]
    assert len(steps) == 1
    assert steps[0] > 900


def test_a_first_step_that_is_slow_leaves_room():
    """A step longer than half of all others together is cut short and marked."""
    records = [
        record(step, (1, "a", 0.0, 0, 0, 1, None), forward_ms=8.0 if step else 5000.0)
        for step in range(10)
    ]
    assert "a step is cut short" in titles(draw_gantt(counts(), records))


names = st.text(max_size=40)
rows = st.tuples(
    st.integers(0, 90),
    names,
    st.floats(0, 2),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 1),
    st.sampled_from([None, "stop", "length", "error", "abort"]),
)
steps = st.builds(
    record,
    st.integers(0, 200),
    start_s=st.floats(0, 1e5),
    forward_ms=st.floats(0, 1e5),
    num_patches=st.integers(0, 10**5),
    waiting=st.integers(0, 10**6),
    slots_held=st.integers(0, 10**6),
    retracted=st.lists(st.integers(0, 90), max_size=3).map(tuple),
) | st.builds(
    lambda facts, step: record(step, *facts), st.lists(rows, max_size=60), st.integers(0, 200)
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(steps, max_size=60),
    st.lists(st.builds(Waiter, st.integers(80, 300), names, st.floats(0, 2))),
)
def test_any_steps_can_be_drawn(records, waiters):
    """Whatever clients call themselves: valid XML of a bounded size, and at most 80 columns."""
    records = sorted(records, key=lambda one: one.start_s)
    now = counts(waiting=len(waiters), slots_total=10**6)
    text = draw_steps(now, records, waiters)
    assert all(line.isprintable() for line in text.splitlines())
    assert max(map(len, text.split("\n"))) <= 80
    assert len(text.splitlines()) < 80
    root = ElementTree.fromstring(draw_gantt(now, records, waiters))
    right = max(float(b.get("x", 0)) + float(b.get("width")) for b in root.iter(SVG + "rect"))
    assert right <= 1200.1
    assert float(root.get("height")) < 1500


def test_a_long_run_has_few_shapes():
    """256 steps of one sequence: what it decoded is one box, not 256."""
    records = [record(step, (1, "a", 0.0, 0, 0, 1, None)) for step in range(256)]
    decoded = [
        title for title in titles(draw_gantt(counts(), records)) if "256 tokens" in title
    ]
    assert decoded == ["#1 a: 256 tokens decoded in steps 0 to 255"]


def test_numbers_are_whole_or_left_out():
    """A box too narrow for its number has none: half a number would be another one."""
    records = [
        record(step, (1, "a", 0.0, 123456, 654321, 0, None), start_s=step * 0.011)
        for step in range(40)
    ]
    root = ElementTree.fromstring(draw_gantt(counts(), records))
    words = [one.text or "" for one in root.iter(SVG + "text")]
    assert [text for text in words if text.startswith("123") or ".." in text] == []
