"""A row is the same row, whatever file it comes from."""

import csv
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.batch import Rows
from mmserve.batch.formats.columns import JSON_FIELDS, cell_value
from mmserve.batch.values import CHECKS

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda text: text.strip() and not text.lstrip().startswith("[")
)
PLACE = TEXT.filter(lambda text: "\0" not in text)
TEXTS = st.lists(TEXT, min_size=1, max_size=3)
MOMENT = st.floats(0, 1e6)
ASKED = st.one_of(
    TEXT.map(lambda text: {"question": text}),
    TEXTS.map(lambda texts: {"questions": texts}),
    TEXTS.map(lambda texts: {"turns": texts}),
)
MEDIA = st.one_of(
    st.fixed_dictionaries(
        {"video": PLACE},
        optional={
            "num_frames": st.integers(1, 99),
            "fps": st.floats(0.1, 60),
            "start_s": st.floats(0, 1),
            "end_s": st.floats(2, 3),
            "times_s": st.lists(MOMENT, min_size=1, max_size=3),
            "key_frames": st.booleans(),
        },
    ),
    st.lists(PLACE, min_size=1, max_size=3).map(lambda places: {"images": places}),
)
FORM = st.one_of(
    st.just({}),
    TEXT.map(lambda text: {"regex": text}),
    TEXT.map(lambda text: {"ebnf": text}),
    st.lists(TEXT, min_size=1, max_size=3, unique=True).map(lambda some: {"choices": some}),
    st.dictionaries(TEXT, st.integers() | TEXT | st.none(), max_size=3).map(
        lambda schema: {"json_schema": schema}
    ),
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXT,
        "system": TEXT,
        "max_tokens": st.integers(1, 2**31 - 1),
        "n": st.just(1),
        "temperature": st.floats(0, 100),
        "top_p": st.floats(0.1, 1),
        "top_k": st.integers(1, 99),
        "seed": st.integers(-(2**63), 2**63 - 1),
    },
)
ROW = st.tuples(MEDIA, ASKED, FORM, MORE).map(
    lambda parts: parts[0] | parts[1] | parts[2] | parts[3]
)


def parsed(path: Path) -> list:
    """Every row of the file, without its line."""
    rows = Rows(path)
    return [rows.parse(raw) for raw in rows]


def write_all(place: Path, row: dict) -> list[Path]:
    """The row as a line of JSON, as CSV and as Parquet, each time in line 2."""
    lines, table, arrow = place / "a.jsonl", place / "a.csv", place / "a.parquet"
    lines.write_text("\n" + json.dumps(row))
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(row)
        writer.writerow(
            json.dumps(value) if name in JSON_FIELDS or not isinstance(value, str) else value
            for name, value in row.items()
        )
    typed = {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in row.items()
    }
    pq.write_table(pa.Table.from_pylist([typed, typed]), arrow)
    return [lines, table, arrow]


@settings(max_examples=80, deadline=None)
@given(ROW)
def test_a_row_is_the_same_in_every_format(row):
    """A line of JSON, CSV and Parquet give equal rows."""
    with tempfile.TemporaryDirectory() as folder:
        found = [parsed(path)[-1] for path in write_all(Path(folder), row)]
    assert found == [found[0]] * 3
    assert found[0].questions


def test_every_field_has_a_meaning_in_a_cell():
    """Each field of a JSON line can be given in a cell: its checked value arrives."""
    samples = {
        "id": "x", "question": "q", "questions": ["q"], "turns": ["q"], "system": "s",
        "video": "v", "images": ["i"], "num_frames": 2, "fps": 1.5, "start_s": 1, "end_s": 2,
        "times_s": [1.0], "key_frames": True, "max_tokens": 3, "n": 2, "temperature": 0.5,
        "top_p": 0.5, "top_k": 4, "seed": 5, "regex": "r", "choices": ["c"],
        "json_schema": {"type": "null"}, "ebnf": "e",
    }  # fmt: skip
    assert samples.keys() == CHECKS.keys()
    for name, value in samples.items():
        text = value if isinstance(value, str) else json.dumps(value)
        assert CHECKS[name](cell_value(name, text)) == CHECKS[name](value)
