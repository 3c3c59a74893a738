"""The benchmark of real schemas tells refused, valid and invalid apart."""

import json

import pytest

from benchmarks import json_schemas

ROWS = [
    {"set": "one", "id": "a", "schema": {"type": "object", "properties": {"a": {"enum": [1]}}}},
    {"set": "one", "id": "b", "schema": {"type": "array", "uniqueItems": True}},
    {"set": "two", "id": "c", "schema": {"type": "string", "format": "date"}},
]


@pytest.fixture
def data(tmp_path):
    """A file of three schemas, one of which is refused."""
    path = tmp_path / "schemas.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def test_record_counts_by_collection(data, tmp_path):
    """The record has a row for each collection, one for all, and one for each refusal."""
    target = tmp_path / "record.json"
    json_schemas.main(["--data", str(data), "--json", str(target), "--tokens", "200"])
    record = json.loads(target.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert [*rows] == ["one", "two", "all", "unsupported: uniqueItems"]
    assert (rows["all"]["accepted"], rows["all"]["refused"]) == (2, 1)
    assert rows["all"]["valid"] + rows["all"]["not_finished"] == 6
    assert record["summary"]["invalid"] == 0


def test_an_invalid_answer_is_seen():
    """Answers that are no JSON, or break the schema or its format, are counted as invalid."""
    validator = json_schemas.validator_of({"type": "string", "format": "date"})
    assert json_schemas.problem_of(validator, b'"2020-02-30"')
    assert json_schemas.problem_of(validator, b"5")
    assert json_schemas.problem_of(validator, b'"2020-02-3')
    assert not json_schemas.problem_of(validator, b'"2020-02-29"')
