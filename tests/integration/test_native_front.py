"""The compiled front beside Python's: on the same store both give the same answers, errors and counts."""

import asyncio
import importlib.util
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, user_weights, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.client import RetrievalClient, RetrievalError, by_history
from weir.serving.config import ServingConfig
from weir.serving.server import Server

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("weir_front") is None, reason="needs the compiled front: make native, which needs Rust"
)

T: Final = 1_700_000_000_000
RETRIEVE: Final = "/weir.retrieval.v1.RetrievalService/Retrieve"
KNOWN: Final = pb.Query(history=pb.History(item_ids=["item-1", "item-7", "gone"]), k=5)
VECTOR: Final = pb.Embedding(values=[1.0] * 8)
ANN: Final = pb.Query(user_id="ann", k=7)
UNKNOWN: Final = {name: pb.Feature(number=3) for name in ("size", "shoes", "hat", "coat", "gloves")}
SAID: Final = {"country": pb.Feature(values=["de"]), "age": pb.Feature(number=31), "size": pb.Feature(number=3)}

Fronts = dict[str, ServerProcess]


def ask(*queries: pb.Query, **more: object) -> bytes:
    return pb.RetrieveRequest(queries=queries, **more).SerializeToString()  # type: ignore[arg-type]


PLAIN: Final = {
    "a history": ask(KNOWN),
    "a user": ask(ANN),
    "an unknown user": ask(pb.Query(user_id="nobody")),
    "a history without a known item": ask(pb.Query(history=pb.History(item_ids=["gone", "far"]), k=3)),
    "an empty history": ask(pb.Query(history=pb.History())),
    "many queries": ask(KNOWN, ANN, pb.Query(user_id="nobody", k=2), KNOWN),
    "more than there are": ask(pb.Query(user_id="ann", k=250)),
    "an id of other letters": ask(pb.Query(history=pb.History(item_ids=["Žluť", "item-3"]))),
    "a probe": ask(KNOWN, probe=True),
    "seen items left out": ask(ANN, KNOWN, exclude_seen=True),
    "excluded items": ask(KNOWN, excluded_item_ids=["item-2", "item-9", "gone"]),
    "empty parameters": ask(KNOWN, params=pb.SearchParams(), filter=pb.Filter()),
    "an item": ask(pb.Query(item_id="item-4")),
    "an unknown item": ask(pb.Query(item_id="gone", k=3)),
    "all items beside one": ask(pb.Query(item_id="item-4", k=250)),
    "an embedding": ask(pb.Query(embedding=pb.Embedding(values=[1.0, -2.5, 0, 0, 3, 1e-3, 7, 1e9]))),
    "all kinds": ask(KNOWN, ANN, pb.Query(item_id="item-9"), pb.Query(embedding=VECTOR, k=3), pb.Query(item_id="gone")),
    "seen and excluded items beside an item": ask(
        pb.Query(item_id="item-4"), ANN, pb.Query(embedding=VECTOR), exclude_seen=True, excluded_item_ids=["item-2"]
    ),
    "an unknown field": ask(KNOWN) + b"\xa0\x06\x01",
}
PASSED_ON: Final = {
    "allowed items": ask(KNOWN, filter=pb.Filter(allowed_item_ids=["item-2", "item-4"])),
    "parameters": ask(KNOWN, params=pb.SearchParams(exact=True, score_threshold=0.1)),
    "the loaded version": ask(KNOWN, bundle_version="v1"),
    "a long embedding": ask(pb.Query(embedding=pb.Embedding(values=[3e17] * 8))),
    "more items than a plain query may want": ask(pb.Query(user_id="ann", k=900)),
    "features of a user": ask(pb.Query(user_id="ann", features=SAID)),
    "features of users without a known item": ask(
        pb.Query(user_id="nobody", features=SAID), pb.Query(history=pb.History(item_ids=["gone"]), features=SAID)
    ),
    "features in one of many queries": ask(KNOWN, pb.Query(user_id="nobody", features=SAID), ANN, exclude_seen=True),
    "features that the bundle does not know": ask(pb.Query(user_id="nobody", features=UNKNOWN)),
    "a large history": ask(*[pb.Query(history=pb.History(item_ids=["item-1"] * 900))] * 40),
}
REFUSED: Final = {
    "nothing": ask(),
    "no source": ask(pb.Query(k=3)),
    "k of 0": ask(pb.Query(user_id="ann", k=0)),
    "k beyond the limit": ask(pb.Query(user_id="ann", k=5000)),
    "an empty id": ask(pb.Query(history=pb.History(item_ids=["item-1", ""]))),
    "a long id": ask(pb.Query(user_id="u" * 600)),
    "no text": b"\x0a\x05\x0a\x03\xff\xfe\xfd",
    "no message": b"\xff\xff\xff",
    "another version": ask(KNOWN, bundle_version="v0"),
    "tags without a catalogue": ask(KNOWN, filter=pb.Filter(any_tags=["jazz"])),
    "an empty item id": ask(pb.Query(item_id="")),
    "an embedding of other dimensions": ask(pb.Query(embedding=pb.Embedding(values=[1.0] * 7))),
    "an embedding of zeros": ask(pb.Query(embedding=pb.Embedding(values=[0.0] * 8))),
    "an embedding that is not finite": ask(pb.Query(embedding=pb.Embedding(values=[1.0, float("nan")] * 4))),
    "an empty excluded id": ask(KNOWN, excluded_item_ids=["item-2", ""]),
    "too many queries": ask(*[KNOWN] * 300),
    "a feature without a value": ask(pb.Query(user_id="ann", features={"age": pb.Feature()})),
    "features of an item": ask(pb.Query(item_id="item-4", features=SAID)),
    "a feature with a name too long for a header": ask(pb.Query(user_id="a", features={"x" * 20_000: pb.Feature()})),
    "features with long names": ask(
        pb.Query(user_id="a", features={f"{number:02}" + "é" * 255: pb.Feature() for number in range(16)})
    ),
}


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronts]:
    """Both servers, ready."""
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_window(store, 0, [Event("ann", f"item-{number}", T + number) for number in range(4)])
    catalogue, said = Catalogue.random(), user_weights()
    write_bundle(store, "v1", catalogue, index="IVF8,Flat", parameters={"nprobe": 3}, user_features=said)
    with ExitStack() as stack:
        found = {name: stack.enter_context(ServerProcess(store, front=name)) for name in ("python", "native")}
        for server in found.values():
            server.serving("v1")
        yield found


def outcome(server: ServerProcess, request: bytes, **call: object) -> tuple[object, ...]:
    """Return the answer without what differs from call to call, or the error."""
    with grpc.insecure_channel(server.target) as channel:
        try:
            answer = channel.unary_unary(RETRIEVE)(request, timeout=30, **call)
        except grpc.RpcError as error:
            return error.code(), error.details(), *details_of(error)
    found = pb.RetrieveResponse.FromString(answer)
    assert found.timing.HasField("total")
    assert found.attribution_token.startswith("v1/")
    found.ClearField("timing")
    found.ClearField("attribution_token")
    return (found,)


def details_of(error: grpc.RpcError) -> Iterator[object]:
    """Yield the details of an error; as bytes they differ from call to call, by the order of a map."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        yield info if detail.Unpack(info) else bad if detail.Unpack(bad) else detail


@pytest.mark.parametrize("request_of", [PLAIN, PASSED_ON, REFUSED], ids=["plain", "passed on", "refused"])
def test_both_give_the_same_answers_and_errors(fronts: Fronts, request_of: dict[str, bytes]) -> None:
    for name, request in request_of.items():
        ours, theirs = (outcome(fronts[front], request) for front in ("native", "python"))
        assert ours == theirs, name


def test_calls_are_counted_the_same(fronts: Fronts) -> None:
    def counts(server: ServerProcess) -> list[float]:
        method = 'grpc_method="Retrieve"'
        return [
            server.metric("grpc_server_started_total", method),
            server.metric("grpc_server_handled_total", method, 'grpc_code="OK"'),
            server.metric("grpc_server_handled_total", method, 'grpc_code="InvalidArgument"'),
            server.metric("grpc_server_handling_seconds_count", method),
            server.metric("weir_request_stage_seconds_count", 'stage="search"'),
            server.metric("weir_fallbacks_total"),
            server.metric("weir_batch_queries_sum"),
            server.metric("weir_requests_refused_total", 'reason="INVALID_REQUEST"'),
        ]

    before = {name: counts(server) for name, server in fronts.items()}
    plain = fronts["native"].metric("weir_plain_calls_total")
    for server in fronts.values():
        for request in (*PLAIN.values(), *PASSED_ON.values(), *REFUSED.values()):
            outcome(server, request)
    assert fronts["native"].metric("weir_plain_calls_total") - plain == len(PLAIN)
    after = {name: counts(server) for name, server in fronts.items()}
    rises = {name: [now - then for now, then in zip(after[name], before[name], strict=True)] for name in fronts}
    assert rises["native"] == rises["python"]
    assert min(rises["native"]) > 0


def test_what_callers_name_comes_back(fronts: Fronts) -> None:
    metadata = (("x-request-id", "a1"), ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-00"), ("other", "b"))
    for server in fronts.values():
        with grpc.insecure_channel(server.target) as channel:
            for request in (PLAIN["a user"], PASSED_ON["parameters"]):
                _, call = channel.unary_unary(RETRIEVE).with_call(request, metadata=metadata, timeout=30)
                initial = {key: value for key, value in call.initial_metadata() if key != "accept-encoding"}
                assert {key: initial[key] for key, _ in metadata[:2]} == dict(metadata[:2])
                assert "other" not in initial


def test_streams_and_other_methods_are_passed_on(fronts: Fronts) -> None:
    with grpc.insecure_channel(fronts["native"].target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        assert stub.GetInfo(pb.GetInfoRequest()).bundle_version == "v1"
        assert len(stub.Embed(pb.EmbedRequest(queries=[KNOWN])).vectors) == 1
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/weir.retrieval.v1.RetrievalService/Nothing")(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_many_callers_each_get_their_own_answer(fronts: Fronts) -> None:
    target, catalogue = fronts["native"].target, Catalogue.random()

    def caller(number: int) -> None:
        with RetrievalClient(target) as client:
            for item in range(number, number + 25):
                [hits] = client.retrieve([by_history([f"item-{item}"], 1 + item % 9)]).hits
                assert len(hits.item_ids) == 1 + item % 9
                top = catalogue.top(catalogue.user([f"item-{item}"]), 200)
                assert [top.index(each) for each in hits.item_ids] == sorted(top.index(each) for each in hits.item_ids)

    before = fronts["native"].metric("weir_plain_calls_total")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(caller, range(0, 160, 20)))
    assert fronts["native"].metric("weir_plain_calls_total") - before == 8 * 25


def test_without_a_bundle_callers_are_told_so_and_later_answered(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store(str(tmp_path_factory.mktemp("empty")))
    write_window(store, 0, [])
    with ServerProcess(store, front="native") as server, RetrievalClient(server.target) as client:
        with pytest.raises(RetrievalError, match="no bundle is loaded"):
            client.retrieve([KNOWN])
        write_bundle(store, "v1", Catalogue.random())
        server.serving("v1")
        assert client.retrieve([KNOWN]).bundle_version == "v1"
        assert server.terminate() == 0


def test_calls_in_progress_are_answered_at_the_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store(str(tmp_path_factory.mktemp("ending")))
    write_window(store, 0, [])
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, front="native", drain_seconds=0.3) as server:
        server.serving("v1")
        failures, ends = list[str](), threading.Event()

        def load() -> None:
            with RetrievalClient(server.target) as client:
                while not ends.is_set():
                    try:
                        client.retrieve([KNOWN])
                    except RetrievalError as error:
                        failures.append(f"{error.code}: {error}")
                        return

        callers = [threading.Thread(target=load) for _ in range(4)]
        for caller in callers:
            caller.start()
        assert server.terminate() == 0
        ends.set()
        for caller in callers:
            caller.join()
    # Nothing listens any more; nothing that was taken was lost.
    assert all("UNAVAILABLE" in failure for failure in failures), failures


def test_when_the_thread_that_searches_has_ended_callers_are_told(tmp_path: Path) -> None:
    """No bundle or request ends the thread in the middle of its work; here it is closed, and the front left."""
    store = Store(str(tmp_path / "store"))
    write_window(store, 0, [])
    write_bundle(store, "v1", Catalogue.random())
    registry = CollectorRegistry(auto_describe=True)
    server = Server(store, ServingConfig(front="native", port=0, metrics_port=0), registry=registry)
    native = server.native
    assert native is not None
    server.followers.histories.catch_up()
    server.watcher.refresh()
    target = f"127.0.0.1:{native.start()}"
    with RetrievalClient(target) as client:
        assert client.retrieve([KNOWN]).bundle_version == "v1"
        server.batcher.close()
        # Python's server is not there: it would refuse the call, as this does.
        with pytest.raises(RetrievalError, match="SHUTTING_DOWN"):
            client.retrieve([KNOWN], timeout=5)
    asyncio.run(native.close())
