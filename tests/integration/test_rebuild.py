"""Traffic moves from a store to its rebuild: servers are replaced one by one under load, and no request fails."""

import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.integration.test_serving_swaps import wait_for
from tests.pipelines import support
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.pipelines.batch.cut_over import cut_over
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.batch.rebuild import WindowSource, prepare
from weir.pipelines.sources.source import MovedStoreError
from weir.serving.client import Retrieval, RetrievalClient, RetrievalError, by_user


def lines(first: int, last: int) -> list[str]:
    return [
        support.Event(f"user-{number % 4}", f"item-{number % 9}", number, event_id=f"e{number}").line()
        for number in range(first, last)
    ]


def test_servers_are_replaced_at_the_cut_over_and_no_request_fails(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", lines(0, 80))
    old, new = Store(str(tmp_path / "old")), Store(str(tmp_path / "new"))
    config = support.config(tmp_path)
    ingest(old, config, registry=CollectorRegistry())
    write_bundle(old, "v-old", Catalogue.random())
    other = prepare(old, new, support.config(tmp_path, window_seconds=30, user_shards=3, history_length=5))
    ingest(new, other, registry=CollectorRegistry(), source=WindowSource(old, other))
    write_bundle(new, "v-new", Catalogue.random(seed=3))
    answers: list[Retrieval] = []
    answered, failures, stop = [0], list[RetrievalError](), threading.Event()

    def ask() -> None:
        with RetrievalClient(f"ipv4:{one.target},{two.target}") as client:
            while not stop.is_set():
                try:
                    answers.append(client.retrieve([by_user(f"user-{number}", 5) for number in range(4)]))
                    answered[0] += 1
                except RetrievalError as error:
                    failures.append(error)

    with ServerProcess(old, drain_seconds=0.5) as one, ServerProcess(new) as two:
        one.serving("v-old")
        two.serving("v-new")
        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            wait_for(answered, 100)
            cut_over(old, new, other)
            # The old store answers on, until its servers are replaced.
            wait_for(answered, answered[0] + 100)
            assert one.terminate() == 0
            before = answered[0]
            wait_for(answered, before + 200)
        finally:
            stop.set()
            for caller in callers:
                caller.join()
    assert failures == []
    assert {answer.bundle_version for answer in answers} == {"v-old", "v-new"}
    assert {answer.bundle_version for answer in answers[before + 4 :]} == {"v-new"}
    # Both know the users by the same keys.
    assert not any(hits.fallback for answer in answers for hits in answer.hits)
    support.write_lines(tmp_path / "log/a.jsonl", lines(80, 90))
    with pytest.raises(MovedStoreError, match="has moved to"):
        ingest(old, config, registry=CollectorRegistry())
    assert ingest(new, other, registry=CollectorRegistry()).valid == 10
