"""Answers of a real server: re-scored, of cold items, at the limit of their size; a monitor that follows it."""

import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.serving.colds import names, with_cold, write_warm
from tests.serving.process import MonitorProcess, ServerProcess
from tests.serving.rescorers import bilinear, form, with_scorer
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import MAX_ID_BYTES, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import RetrievalClient, RetrievalError, by_embedding, by_history, by_item
from weir.serving.monitor.results import recorded

NATIVE = pytest.mark.skipif(
    importlib.util.find_spec("weir_front") is None, reason="needs the compiled front: make native, which needs Rust"
)


@pytest.mark.parametrize("front", ["python", pytest.param("native", marks=NATIVE)])
def test_plain_calls_are_answered_in_the_order_of_the_second_phase(tmp_path: Path, front: str) -> None:
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random(items=300)
    with_scorer(store, write_bundle(store, "v1", catalogue), 50, bilinear(form()))
    user = catalogue.user(["item-1", "item-2"])
    best = catalogue.top(user, 50)
    scores = catalogue.vectors[[catalogue.ids.index(item) for item in best]] @ (user @ form())
    order = np.argsort(-scores, kind="stable")[:10]
    with ServerProcess(store, front=front) as server, RetrievalClient(server.target) as client:
        answer = client.retrieve([by_history(["item-1", "item-2"], 10), by_embedding(user, 10)])
    for hits in answer.hits:
        assert list(hits.item_ids) == [best[place] for place in order]
        np.testing.assert_allclose(hits.scores, scores[order], rtol=1e-3, atol=1e-4)


WITHIN = 10.0


def write(path: Path, catalogue: Catalogue, count: int) -> None:
    """Write the first items of a catalogue, with tags and features."""
    with path.with_suffix(".draft").open("w") as file:
        for item, embedding in zip(catalogue.ids[:count], catalogue.embeddings[2:].tolist(), strict=False):
            features = dict(zip(names().dense, embedding, strict=True))
            file.write(json.dumps({"item_id": item, "tags": ["new"] if item == "item-199" else [], **features}) + "\n")
    path.with_suffix(".draft").replace(path)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_item_that_appears_is_answered_marked_and_counted(tmp_path: Path, processes: int) -> None:
    store, path, catalogue = Store(str(tmp_path / "store")), tmp_path / "items.jsonl", with_cold(Catalogue.random())
    write_warm(store, "v1", catalogue, "IVF4,SQfp16", nprobe=4)
    write(path, catalogue, 160)
    files = CatalogueFiles(str(path), features=names())
    with ServerProcess(store, files, processes=processes) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        assert client.retrieve([by_item("item-199", 5)]).hits[0].fallback
        assert server.metric("weir_cold_items") == 0
        write(path, catalogue, 200)
        appeared = time.monotonic()
        while server.metric("weir_cold_items") != 40:
            assert time.monotonic() < appeared + WITHIN
            time.sleep(0.02)
        while (hits := client.retrieve([by_item("item-3", 1)], any_tags=["new"]).hits[0]).item_ids != ["item-199"]:
            assert time.monotonic() < appeared + WITHIN
            time.sleep(0.02)
        assert hits.cold == [True]
        assert hits.complete
        top = client.retrieve([by_history(["item-190"], 20)], exact=True).hits[0]
        assert top.item_ids == catalogue.top(catalogue.user(["item-190"]), 20)
        assert top.cold == [int(item.partition("-")[2]) >= 160 for item in top.item_ids]
        assert server.metric("weir_cold_hits_total") >= 1 + sum(top.cold)


CATALOGUE = Catalogue.random(64, prefix="i" * (MAX_ID_BYTES - 4))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = Store(str(tmp_path_factory.mktemp("sizes") / "store"))
    write_bundle(store, "v1", CATALOGUE)
    with ServerProcess(store) as process:
        process.serving("v1")
        yield process


def reason_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, bool]:
    """Return code and reason of a refusal, and whether it says to wait and try again."""
    status = rpc_status.from_call(error)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    details = [] if status is None else status.details
    waits = any(detail.Unpack(retry) for detail in details)
    return error.code(), next((info.reason for detail in details if detail.Unpack(info)), ""), waits


def test_no_answer_is_larger_than_what_clients_take_by_default(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        limits = stub.GetInfo(pb.GetInfoRequest(), timeout=10).limits
        assert limits.max_answer_bytes == 4 << 20
        refused, answered = [], []
        for queries in (1, 16, limits.max_queries // 2, limits.max_queries):
            for k in (1, 32, limits.max_k):
                request = pb.RetrieveRequest(queries=[by_item(CATALOGUE.ids[row % 64], k) for row in range(queries)])
                try:
                    answer = stub.Retrieve(request, timeout=30)
                except grpc.RpcError as error:
                    refused.append((queries * min(k, 63) * (MAX_ID_BYTES + 8), reason_of(error), error.details()))
                else:
                    answered.append(answer.ByteSize())
        assert refused
        for size, reason, message in refused:
            assert size > limits.max_answer_bytes
            assert reason == (grpc.StatusCode.FAILED_PRECONDITION, "ANSWER_TOO_LARGE", False)
            assert "serving.limits.max_answer_bytes" in message
            assert "grpc.max_receive_message_length" in message
        assert max(answered) <= limits.max_answer_bytes
        # Ids that are missing come back as well.
        strangers = [pb.Query(history=pb.History(item_ids=["x" * MAX_ID_BYTES] * 1000)) for _ in range(16)]
        with pytest.raises(grpc.RpcError) as refusal:
            stub.Retrieve(pb.RetrieveRequest(queries=strangers), timeout=30)
        assert reason_of(refusal.value)[1] == "ANSWER_TOO_LARGE"


def test_a_server_may_send_more_to_clients_that_take_more(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", CATALOGUE)
    queries = [by_item(item, 64) for item in CATALOGUE.ids * 4]
    with ServerProcess(store, limits={"max_answer_bytes": 1 << 30}) as server:
        server.serving("v1")
        with RetrievalClient(server.target) as client:
            assert sum(len(hits.item_ids) for hits in client.retrieve(queries).hits) == 256 * 63


def test_a_request_that_is_too_large_is_not_told_to_come_back(server: ServerProcess) -> None:
    with RetrievalClient(server.target) as client, pytest.raises(RetrievalError) as refusal:
        client.retrieve([by_item("item")], excluded_item_ids=["x" * (17 << 20)])
    assert (refusal.value.reason, refusal.value.retry_after) == ("MESSAGE_TOO_LARGE", None)
    assert "max_request_bytes" in str(refusal.value)


T = 1_700_000_000_000


def test_it_follows_a_running_server(tmp_path: Path) -> None:
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random()
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [Event("ann", "item-1", T)])
    with ServerProcess(store) as server, MonitorProcess(store, target=server.target, k=(1, 50)) as monitor:
        server.said("ready")
        write_window(store, 1, [Event("ann", catalogue.top(catalogue.user(["item-1"]), 1)[0], T, ["item-1"])] * 5)
        monitor.said("window .*model @1=1.000 @50=1.000")
        assert monitor.metric("weir_recall_model", 'k="1"') == 1
        write_bundle(store, "v2", catalogue, trained_sequence=1)
        write_window(store, 2, [Event("bob", "item-3", T)])
        server.serving("v2")
        while monitor.metric("weir_event_to_servable_seconds_count") != 100:
            time.sleep(0.05)
        while monitor.metric("weir_recall_windows_total") != 3:
            time.sleep(0.05)
        assert monitor.terminate() == 0
        assert server.terminate() == 0
    assert [result.sequence for result in recorded(store)] == [0, 1, 2]


def test_it_ends_cleanly_without_a_server(tmp_path: Path) -> None:
    with MonitorProcess(Store(str(tmp_path)), target="127.0.0.1:9") as monitor:
        monitor.said("ready: asking 127.0.0.1:9")
        monitor.said("waiting after commit -1: UNAVAILABLE")
        assert monitor.terminate() == 0
