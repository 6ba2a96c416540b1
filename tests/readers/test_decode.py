"""Features of tables and of lines of values, in whatever type a column has; most rows of real logs lack some."""

import csv
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.readers import Block, BlockId, Lines, LogConfig, TableRows, Validator, validate
from weir.readers.blocks import Header

NAMES = {"categorical": ["genre"], "dense": ["price"]}
words = st.text("abé", min_size=1, max_size=3)
kinds: dict[str, tuple[Any, Any]] = {
    "string": (pa.string(), words),
    "large string": (pa.large_string(), words),
    "string view": (pa.string_view(), words),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), words),
    "integer": (pa.int16(), st.integers(-9, 9)),
    "list": (pa.list_(pa.string()), st.lists(words, max_size=3)),
    "large list": (pa.large_list(pa.large_string()), st.lists(words, max_size=3)),
    "pair": (pa.list_(pa.string(), 2), st.lists(words, min_size=2, max_size=2)),
    "list of integers": (pa.list_(pa.int64()), st.lists(st.integers(-9, 9), max_size=3)),
}
prices = st.none() | st.floats(-1e6, 1e6, width=32)


@pytest.fixture(autouse=True)
def _first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises is not looked for in parts: a part that does not raise would hide it."""
    monkeypatch.setattr(validate, "_TRIES", 0)


def told(block: Block) -> list[dict[str, Any]]:
    batch, letters = Validator(LogConfig(item_features=NAMES)).validate(block)
    assert letters.letters == ()
    return batch.rows.column("features").to_pylist()


def wanted(genre: Any) -> list[str] | None:
    if genre is None:
        return None
    return [str(value) for value in (genre if isinstance(genre, list) else [genre])]


@pytest.mark.parametrize("kind", [*kinds])
@given(data=st.data())
def test_a_table_may_lack_any_value_whatever_its_type(kind: str, data: st.DataObject) -> None:
    arrow, values = kinds[kind]
    rows = data.draw(st.lists(st.tuples(st.none() | values, prices), min_size=1, max_size=8))
    genres, costs = zip(*rows, strict=True)
    ids = {"user_id": ["u"] * len(rows), "item_id": ["i"] * len(rows), "timestamp": [1_700_000_000] * len(rows)}
    table = pa.table(ids | {"genre": pa.array(genres, arrow), "price": pa.array(costs, pa.float64())})
    start = data.draw(st.integers(0, len(rows) - 1))
    found = told(Block(BlockId("log.parquet", 0), TableRows(table.slice(start), np.arange(start, len(rows)))))
    assert found == [{"genre": wanted(genre), "price": cost} for genre, cost in rows[start:]]


@given(st.lists(st.tuples(st.none() | st.lists(words, min_size=1, max_size=3), prices), min_size=1, max_size=8))
def test_lines_of_values_spell_lists_and_may_lack_any(rows: list[tuple[list[str] | None, float | None]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        ("u", "i", 1_700_000_000, "|".join(genre or ()), "" if cost is None else cost) for genre, cost in rows
    )
    header = Header(("user_id", "item_id", "timestamp", "genre", "price"), ",")
    lines = Lines(text.getvalue().encode().split(b"\n")[:-1], np.arange(len(rows)), header=header)
    found = told(Block(BlockId("log.csv", 0), lines))
    assert found == [{"genre": genre, "price": cost} for genre, cost in rows]
