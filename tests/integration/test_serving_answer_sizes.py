"""Whatever GetInfo allows is answered to a client with its library's own settings, or refused with what to set."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import MAX_ID_BYTES, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.client import RetrievalClient, RetrievalError, by_item

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
