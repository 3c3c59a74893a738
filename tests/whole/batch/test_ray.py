"""A job over a local Ray cluster; where Ray is not installed, how that is told."""

import functools
import importlib.util
import json
from dataclasses import replace

import pytest
from support.ray_askers import open_dying, open_scripted
from support.scripted_client import ScriptedClient

from mmserve.batch import BatchSettings, answer_file
from mmserve.batch.ray import GroupRow, RaySettings, answered_groups
from mmserve.batch.ray.wire import record_of
from mmserve.batch.ray.worker import answer_groups
from mmserve.core import MissingExtra

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason='needs pip install "mmserve[ray]"')
ROWS = [
    {"video": f"http://host/{n // 2}.mp4", "questions": [f"q{n}", f"r{n}"], "num_frames": 2}
    for n in range(20)
] + [{"id": "own", "video": "http://host/0.mp4", "question": "last", "choices": ["a", "b"]}]
LINES = [json.dumps(row).encode() for row in ROWS]
GROUPS = [
    (n, [GroupRow(2 * n + k + 1, LINES[2 * n + k]) for k in range(2) if 2 * n + k < len(LINES)])
    for n in range(11)
]


def plain(records):
    """Records in the order of the input, without what depends on how they were computed."""
    bare = [replace(record, usage=None, timing=None) for record in records]
    return sorted(bare, key=lambda record: (record.line, record.question_index))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The records of one process."""
    folder = tmp_path_factory.mktemp("one")
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_bytes(b"\n".join(LINES))
    answer_file(ScriptedClient(), source, target, BatchSettings())
    return plain(record_of(line) for line in target.read_bytes().splitlines())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of two processors in this machine, on loopback."""
    import ray  # noqa: PLC0415

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=80 << 20,
    )
    yield ray
    ray.shutdown()


def test_a_worker_answers_its_groups_as_one_process_does(expected):
    """Lines, ids and answers are those of the input, whatever else stands in the block."""
    groups = [
        {"group": number, "rows": [{"line": r.line, "content": r.content} for r in rows]}
        for number, rows in reversed(GROUPS)
    ]
    answered = answer_groups(ScriptedClient(), groups, BatchSettings())
    assert [item["group"] for item in answered] == [number for number, _ in reversed(GROUPS)]
    records = [record_of(record) for item in answered for record in item["records"]]
    assert plain(records) == expected


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_error_says_what_to_install():
    """Before anything is asked."""
    answered = answered_groups(iter(GROUPS), open_scripted, BatchSettings(), RaySettings())
    with pytest.raises(MissingExtra, match=r"mmserve\[ray\]"):
        next(answered)


@needs_ray
@pytest.mark.filterwarnings("ignore")  # Ray warns of itself
def test_two_workers_give_the_records_of_one_process(expected, cluster):
    """Every question has one record, and it says the same."""
    settings = RaySettings(ray=True, ray_workers=2)
    answered = dict(answered_groups(iter(GROUPS), open_scripted, BatchSettings(), settings))
    assert plain(record for records in answered.values() for record in records) == expected


@needs_ray
@pytest.mark.filterwarnings("ignore")  # Ray warns of itself
def test_a_killed_worker_loses_nothing(expected, cluster, tmp_path):
    """Its groups are answered by another; every question still has one record."""
    settings = RaySettings(ray=True, ray_workers=2)
    open_asker = functools.partial(open_dying, str(tmp_path))
    answered = list(answered_groups(iter(GROUPS), open_asker, BatchSettings(), settings))
    assert (tmp_path / "killed").exists()
    assert plain(record for _, records in answered for record in records) == expected
