from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.worker.statecache import get_deep_size
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.contracts import Store
from weir.contracts.base import columns
from weir.pipelines.runs.progress import Progress, claims_in_hand, read_open_rows, write_open_rows

ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**62), st.text(), st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.lists(st.text())
    ),
    min_size=1,
)


def a_batch(rows: list[tuple[int, str, int | None, list[str] | None]]) -> pa.RecordBatch:
    """Rows as they are kept, with a feature that not every row has."""
    positions, items, events, genres = zip(*rows, strict=True)
    fields = {
        columns.POSITION: pa.array(positions, pa.int64()),
        columns.ITEM_ID: pa.array(items, pa.string()),
        columns.EVENT_KEY: pa.array(events, pa.int64()),
        columns.FEATURES: pa.StructArray.from_arrays([pa.array(genres, pa.list_(pa.string()))], ["genre"]),
    }
    return pa.RecordBatch.from_pydict(fields)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("rows")))


@given(ROWS)
@settings(deadline=None, max_examples=30)
def test_rows_come_back_as_they_were_with_their_lowest_position(
    store: Store, rows: list[tuple[int, str, int | None, list[str] | None]]
) -> None:
    batch = a_batch(rows)
    kept = write_open_rows(store, "state/runs/one", "part.jsonl", 60_000, batch, claims={1: 2, -(2**63): 2**63 - 1})
    assert claims_in_hand(store, kept) == {1: 2, -(2**63): 2**63 - 1}
    assert read_open_rows(store, kept).equals(batch)
    assert (kept.partition, kept.start_ms, kept.lowest) == ("part.jsonl", 60_000, min(row[0] for row in rows))


def test_two_files_of_one_run_and_window_are_two(store: Store) -> None:
    batches = [a_batch([(position, "item", None, None)]) for position in (5, 3)]
    kept = [write_open_rows(store, "state/runs/one", "part.jsonl", 0, batch, claims={}) for batch in batches]
    assert [read_open_rows(store, one).equals(batch) for one, batch in zip(kept, batches, strict=True)] == [True, True]
    assert [one.lowest for one in kept] == [5, 3]


def test_rows_that_are_gone_or_damaged_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    kept = write_open_rows(store, "state/runs/one", "part.jsonl", 0, a_batch([(1, "item", None, None)]), claims={})
    data = store.read(kept.name)
    for damaged in (b"", data[: len(data) // 2]):
        store.write(kept.name, damaged)
        with pytest.raises(pa.ArrowInvalid):
            read_open_rows(store, kept)
    store.remove(kept.name)
    with pytest.raises(FileNotFoundError):
        read_open_rows(store, kept)


CLAIMS = st.lists(st.tuples(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)), max_size=8)


def test_beam_takes_no_longer_to_measure_many_claims() -> None:
    """Its cache asks for the size of what it holds, object by object."""
    few, many = Progress(contested={1: 2}), Progress(contested=dict.fromkeys(range(10_000), 2))
    assert get_deep_size(few) == get_deep_size(many)


@given(st.lists(CLAIMS, max_size=5))
def test_of_several_ids_that_claim_a_key_the_lowest_check_has_it(parts: list[list[tuple[int, int]]]) -> None:
    arrays = (np.array(part, np.int64).reshape(-1, 2) for part in parts)
    found = Progress().add(Progress(claims=[claims]) for claims in arrays).settle()
    checks: dict[int, set[int]] = {}
    for key, check in (pair for part in parts for pair in part):
        checks.setdefault(key, set()).add(check)
    assert found.contested == {key: min(known) for key, known in checks.items() if len(known) > 1}
    assert not found.claims
