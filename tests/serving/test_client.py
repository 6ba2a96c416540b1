import grpc
import pytest

from contracts import Store
from serving.client import RetrievalClient, RetrievalError, by_embedding, by_history, by_item, by_user
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle


def test_answers_are_plain_values(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, index="IVF4,Flat", parameters={"nprobe": 4}, trained_sequence=3)
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        queries = [by_user("who", 2), by_history(["item-1", "what"], 3), by_item("item-2", 1)]
        answer = client.retrieve(
            [*queries, by_embedding(catalogue.vectors[9].tolist())],
            excluded_item_ids=["item-9"],
            score_threshold=-1.0,
            bundle_version="v1",
        )
        assert [len(hits.item_ids) for hits in answer.hits] == [2, 3, 1, 10]
        assert [hits.fallback for hits in answer.hits] == [True, False, False, False]
        assert answer.hits[1].missing_item_ids == ["what"]
        assert set(answer.seconds) == {"total", "queue", "tower", "search"}
        assert answer.attribution_token.startswith("v1/")
        narrow = client.retrieve([by_item("item-2")], allowed_item_ids=["item-3", "item-4"], exact=True)
        assert sorted(narrow.hits[0].item_ids) == ["item-3", "item-4"]
        stranger, item = client.embed([by_user("who"), by_item("item-2")])
        assert stranger is None
        assert item == pytest.approx(catalogue.vectors[2].tolist())
        info = client.info()
        assert (info.bundle_version, info.trained_sequence, info.metric) == ("v1", 3, "cosine")
        assert info.index_parameters == {"nprobe": 4.0}
        assert info.max_event_time == 1_700_000_000
        with pytest.raises(RetrievalError) as refusal:
            client.retrieve([by_user("", 0)])
        assert refusal.value.violations == {
            "queries[0].user_id": "is empty",
            "queries[0].k": "is 0, must be from 1 to 1000",
        }
        assert str(refusal.value).startswith("INVALID_ARGUMENT (INVALID_REQUEST): queries[0].user_id")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with RetrievalClient("127.0.0.1:9", timeout=5) as client, pytest.raises(RetrievalError) as refusal:
        client.info()
    assert refusal.value.code == grpc.StatusCode.UNAVAILABLE
    assert refusal.value.reason == ""


def test_a_closed_client_refuses_even_its_first_call() -> None:
    client = RetrievalClient("127.0.0.1:9", timeout=5)
    client.close()
    with pytest.raises(ValueError, match="this client is closed"):
        client.info()


def test_large_answers_and_large_requests_pass(store: Store) -> None:
    catalogue = Catalogue.random(items=1000, prefix="item-with-a-long-name-" + "x" * 200)
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        answer = client.retrieve([by_history(catalogue.ids[-250:], 1000)] * 100)
        assert [len(hits.item_ids) for hits in answer.hits] == [1000] * 100
