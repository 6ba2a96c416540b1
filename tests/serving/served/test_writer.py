"""The way of served lists to the store: files, failures, the end, and old hours."""

import logging
import time

import pytest
from prometheus_client import CollectorRegistry

from tests.serving.served.test_lists import NOBODY, hits
from weir.contracts import Store
from weir.contracts.served import new_segment, read_segment, segment_of, served_files, write_served
from weir.serving.metrics import ServedMetrics
from weir.serving.served.config import ServedConfig
from weir.serving.served.lists import ServedLists
from weir.serving.served.writer import ServedWriter


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
