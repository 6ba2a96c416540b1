"""Served lists in memory and in the store: which answers are kept, in order, and which give way."""

import logging
import threading
import time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from weir.contracts import Key, Store
from weir.contracts.served_lists import SERVED_SCHEMA, new_segment, read_segment, segment_of, served_files, write_served
from weir.serving.config import ServedConfig
from weir.serving.metrics import ServedMetrics
from weir.serving.search.queries import ByEmbedding, ByUser, Hits, Query
from weir.serving.served_lists import ServedLists, ServedWriter

VECTOR = np.zeros(2, np.float32)
ANN, NOBODY = Query(ByUser(Key(-5)), 3), Query(ByEmbedding(VECTOR), 3)


def hits(*ids: str, fallback: bool = False) -> Hits:
    return Hits(list(ids), [1.0] * len(ids), [], None if fallback else VECTOR)


def made(**config: object) -> tuple[ServedLists, CollectorRegistry]:
    registry = CollectorRegistry()
    return ServedLists(ServedConfig.model_validate({"share": 1, **config}), ServedMetrics(registry)), registry


def dropped(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("weir_served_lists_total", {"outcome": "dropped"})


def test_an_answer_becomes_a_row_for_each_query() -> None:
    lists, _ = made()
    token = lists.note("v1", [ANN, NOBODY], [hits("a", "b"), hits("c", fallback=True)])
    other = lists.note("v2", [NOBODY], [hits()])
    batch = lists.take()
    table = batch.table()
    assert table.schema == SERVED_SCHEMA
    assert segment_of(token) == segment_of(other) == batch.segment
    assert token != other
    rows = table.drop_columns(["served_at"]).to_pylist()
    names = ("attribution_token", "query", "user_key", "bundle_version", "fallback", "item_ids")
    expected = [
        (token, 0, -5, "v1", False, ["a", "b"]),
        (token, 1, None, "v1", True, ["c"]),
        (other, 0, None, "v2", False, []),
    ]
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert lists.take().table().num_rows == 0


def test_more_lists_than_become_columns_at_once_keep_their_order() -> None:
    lists, _ = made()
    for number in range(100):
        lists.note("v1", [NOBODY], [hits(str(number))])
    assert lists.take().table()["item_ids"].to_pylist() == [[str(number)] for number in range(100)]


def test_the_share_is_drawn_and_the_rest_has_tokens_that_name_no_file() -> None:
    lists, _ = made(share=0.25)
    tokens = [lists.note("v1", [NOBODY], [hits("a")]) for _ in range(4000)]
    kept = [token for token in tokens if segment_of(token)]
    assert len(set(tokens)) == 4000
    assert len(kept) == lists.take().table().num_rows
    # 1000 expected, standard deviation 27.
    assert 850 < len(kept) < 1150


@pytest.mark.parametrize("config", [{"share": 0}, {}])
def test_nothing_is_kept_of_a_probe_or_without_a_share(config: dict[str, object]) -> None:
    lists, registry = made(**config)
    token = lists.note("v1", [NOBODY], [hits("a")], probe=not config)
    assert segment_of(token) is None
    assert token.startswith("v1/")
    assert lists.take().lists == []
    assert dropped(registry) == 0


def test_lists_beyond_the_limit_are_dropped_until_there_is_room() -> None:
    lists, registry = made(max_waiting_items=1000)
    many = hits(*map(str, range(400)))
    tokens = [lists.note("v1", [NOBODY], [many]) for _ in range(4)]
    assert [segment_of(token) is None for token in tokens] == [False, False, True, True]
    assert dropped(registry) == 2
    assert len(lists.take().lists) == 2
    assert segment_of(lists.note("v1", [NOBODY], [many]))


def test_threads_lose_nothing_and_every_token_names_its_batch() -> None:
    lists, _ = made()
    batches, found, done = [], dict[str, str](), threading.Event()

    def take() -> None:
        while not done.is_set():
            batches.append(lists.take())

    taker = threading.Thread(target=take)
    taker.start()
    tokens = [lists.note("v1", [NOBODY], [hits("a")]) for _ in range(5000)]
    done.set()
    taker.join()
    for batch in [*batches, lists.take()]:
        found |= {one.token: batch.segment for one in batch.lists}
    assert found == {token: segment_of(token) for token in tokens}


class Writing:
    """A writer, and what it counts."""

    def __init__(self, store: Store, **config: object) -> None:
        settings = ServedConfig.model_validate({"share": 1, **config})
        self.registry = CollectorRegistry()
        metrics = ServedMetrics(self.registry)
        self.lists = ServedLists(settings, metrics)
        self.writer = ServedWriter(store, settings, self.lists, metrics)

    def note(self, *ids: str) -> str:
        return self.lists.note("v1", [NOBODY], [hits(*ids)])

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_each_flush_writes_a_file_where_there_is_anything(store: Store) -> None:
    writing = Writing(store)
    writing.writer.flush()
    assert served_files(store) == []
    for _ in range(2):
        tokens = [writing.note("a", "b"), writing.note("c")]
        writing.writer.flush()
        found = read_segment(store, segment_of(tokens[0]) or "")
        assert found is not None
        assert found["attribution_token"].to_pylist() == tokens
    assert len(served_files(store)) == 2
    assert writing.count("weir_served_lists_total", outcome="written") == 4
    assert writing.count("weir_served_files_total") == 2


def test_what_cannot_be_written_waits_and_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writing, really = Writing(store, max_waiting_items=1000), Store.write

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Store, "write", fail)
    first = writing.note("a")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            writing.writer.flush()
    assert [record.message for record in caplog.records] == [
        "served lists are not written, or not removed: the disk is full"
    ]
    assert writing.count("weir_served_errors_total") == 3
    for _ in range(3):
        later = writing.note(*map(str, range(400)))
    assert segment_of(later) is None
    monkeypatch.setattr(Store, "write", really)
    for _ in range(2):
        writing.writer.flush()
    # Of segments that begin in the same second any may come first.
    assert sorted(file.rows for file in served_files(store)) == [1, 2]
    assert read_segment(store, segment_of(first) or "") is not None


def test_the_thread_writes_by_itself_and_at_the_end(store: Store) -> None:
    writing = Writing(store, flush_seconds=0.05)
    writing.note("a")
    writing.writer.start()
    ends = time.monotonic() + 20
    while not served_files(store) and time.monotonic() < ends:
        time.sleep(0.01)
    assert [file.rows for file in served_files(store)] == [1]
    writing.note("b")
    writing.writer.close()
    assert sum(file.rows for file in served_files(store)) == 2
    idle = Writing(store, share=0)
    idle.writer.start()
    idle.writer.close()


def test_hours_older_than_they_are_kept_go(store: Store) -> None:
    now, table = time.time(), Writing(store).lists.take().table()
    ages = {hours: write_served(store, new_segment(now - 3600 * hours), table) for hours in (0, 12, 24, 26, 400)}
    Writing(store, keep_days=1).writer.flush()
    assert {file.name for file in served_files(store)} == {ages[hours].name for hours in (0, 12, 24)}
    assert not store.exists(ages[400].name.rpartition("/")[0])
