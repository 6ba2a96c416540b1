"""The gRPC adapter in this process: real transport, batcher, retriever and bundle; a gate holds the search up."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, histories_of, poisonous_tower, write_bundle, write_window
from tests.serving.users import BOUND, Event
from weir.contracts import BundleLog, Store
from weir.contracts.served_lists import segment_of
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.batching.batcher import Batcher
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.config import LimitsConfig, ServedConfig, ServingConfig
from weir.serving.metrics import RequestMetrics, RpcMetrics, ServedMetrics
from weir.serving.rpc.admission import Admission, AdmissionInterceptor
from weir.serving.rpc.decoding import DecodingInterceptor, OffloadExecutor
from weir.serving.rpc.instrumentation import MetricsInterceptor
from weir.serving.rpc.service import RetrievalService
from weir.serving.search.queries import Answer, Task
from weir.serving.search.retriever import Retriever
from weir.serving.served_lists import ServedLists

ANN = pb.Query(history=pb.History(item_ids=["item-1", "item-2"]), k=5)
ASK = pb.RetrieveRequest(queries=[ANN])
CONFIG = ServingConfig(limits=LimitsConfig(max_queries=8, max_k=100))


@dataclass
class Served:
    """A running service and the knobs of the test."""

    bundle: LoadedBundle | None
    retriever: Retriever
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    searched: list[int] = field(default_factory=list)
    lists: ServedLists = field(init=False)
    stub: "retrieval_pb2_grpc.RetrievalServiceAsyncStub" = field(init=False)
    channel: grpc.aio.Channel = field(init=False)
    admission: Admission = field(default_factory=lambda: Admission(limit=100, retry_after=0.25))

    def run(self, tasks: Sequence[Task]) -> list[Answer]:
        self.started.set()
        assert self.gate.wait(10)
        self.searched.append(len(tasks))
        return self.retriever(tasks)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def handled(self, method: str, code: str) -> float | None:
        labels = {"grpc_type": "unary", "grpc_service": "weir.retrieval.v1.RetrievalService", "grpc_method": method}
        return self.sample("grpc_server_handled_total", **labels, grpc_code=code)

    async def counted(self, method: str, code: str) -> None:
        """Wait for one call to be counted: a client can hear of its refusal first."""
        async with asyncio.timeout(10):
            while self.handled(method, code) != 1:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    store: Store, version: str | None = "v1", queue: int = 4, config: ServingConfig = CONFIG
) -> AsyncIterator[Served]:
    bundle = None if version is None else load_bundle(BundleLog(store), version)
    served = Served(bundle, Retriever(histories_of(store)))
    served.lists = ServedLists(config.served, ServedMetrics(served.registry))
    metrics = RequestMetrics(served.registry)
    batcher: Batcher[Task, Answer] = Batcher(
        served.run, metrics, max_batch=8, max_cost=config.max_batch_cost, limit=queue, retry_after=0.25
    )
    aside = OffloadExecutor(config.retry_after_seconds)
    service = RetrievalService(
        lambda: [] if served.bundle is None else [served.bundle],
        batcher,
        config,
        metrics,
        aside,
        served=served.lists,
        admission=served.admission,
    )
    decoding = DecodingInterceptor(service.refuse, aside, config.limits.fields)
    rpcs = RpcMetrics(served.registry)
    interceptors = [AdmissionInterceptor(served.admission, metrics, rpcs), MetricsInterceptor(rpcs), decoding]
    server = grpc.aio.server(interceptors=interceptors)
    retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    reflection.enable_server_reflection((reflection.SERVICE_NAME,), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        served.channel = channel
        served.stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        try:
            yield served
        finally:
            served.gate.set()
            await server.stop(5)
            await asyncio.to_thread(batcher.close)


@pytest.fixture(autouse=True)
def bundle(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue, trained_sequence=7)


async def refused(call: object) -> tuple[grpc.StatusCode, dict[str, object]]:
    """Return the code and the details, by name, of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call  # type: ignore[misc]
    status = rpc_status.from_call(failure.value)
    found = {}
    for detail in status.details if status is not None else ():
        kind = getattr(error_details_pb2, detail.TypeName().rpartition(".")[2])()
        detail.Unpack(kind)
        found[type(kind).__name__] = kind
    return failure.value.code(), found


def test_answers_are_kept_unless_nobody_is_shown_them(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store, config=CONFIG.model_copy(update={"served": ServedConfig(share=1)})) as served:
            served.gate.set()
            answer = await served.stub.Retrieve(ASK)
            probe = await served.stub.Retrieve(pb.RetrieveRequest(queries=[ANN], probe=True))
            batch = served.lists.take()
            assert [(one.token, one.items) for one in batch.lists] == [
                (answer.attribution_token, list(answer.hits[0].item_ids))
            ]
            assert segment_of(answer.attribution_token) == batch.segment
            assert segment_of(probe.attribution_token) is None
            assert list(probe.hits[0].item_ids) == list(answer.hits[0].item_ids)

    asyncio.run(scenario())


def test_an_answer_says_where_it_comes_from(store: Store, catalogue: Catalogue) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            first, second = await served.stub.Retrieve(ASK), await served.stub.Retrieve(ASK)
            assert list(first.hits[0].item_ids) == catalogue.top(catalogue.user(["item-1", "item-2"]), 5)
            assert first.bundle_version == "v1"
            assert first.attribution_token != second.attribution_token
            assert first.attribution_token.startswith("v1/")
            spent = first.timing
            stages = [getattr(spent, stage).ToNanoseconds() for stage in ("queue", "tower", "search")]
            assert all(stages)
            assert spent.total.ToNanoseconds() >= sum(stages)
            for stage in ("total", "queue", "tower", "search"):
                assert served.sample("weir_request_stage_seconds_count", stage=stage) == 2
            assert served.handled("Retrieve", "OK") == 2

    asyncio.run(scenario())


def test_embed_gives_what_retrieve_searches_with(store: Store, catalogue: Catalogue) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            queries = [ANN, pb.Query(user_id="stranger"), pb.Query(item_id="item-3")]
            answer = await served.stub.Embed(pb.EmbedRequest(queries=queries))
            ann, stranger, item = answer.vectors
            np.testing.assert_allclose(ann.values, catalogue.user(["item-1", "item-2"]), rtol=1e-5)
            np.testing.assert_allclose(item.values, catalogue.vectors[3], rtol=1e-6)
            assert (len(stranger.values), stranger.fallback) == (0, True)
            again = pb.RetrieveRequest(queries=[pb.Query(embedding=pb.Embedding(values=ann.values), k=5)])
            by_vector = await served.stub.Retrieve(again)
            by_history = await served.stub.Retrieve(ASK)
            assert by_vector.hits[0].item_ids == by_history.hits[0].item_ids

    asyncio.run(scenario())


def test_get_info_describes_the_bundle(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            info = await served.stub.GetInfo(pb.GetInfoRequest())
            assert (info.bundle_version, info.items, info.dimension, info.trained_sequence) == ("v1", 200, 8, 7)
            assert (info.metric, info.index.type) == (pb.METRIC_COSINE, "Flat")
            assert info.max_event_time.ToMilliseconds() == 1_700_000_000_000
            assert abs(info.servable_time.ToNanoseconds() / 1e9 - time.time()) < 60
            assert dict(info.evaluation) == {"recall@10": 0.25}
            assert (info.limits.max_queries, info.limits.max_k, info.limits.max_id_bytes) == (8, 100, 512)
            assert info.software_version
            assert info.sketch_version.endswith("/0000")

    asyncio.run(scenario())


def test_before_the_first_bundle_every_call_is_unavailable(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store, version=None) as served:
            embed = pb.EmbedRequest(queries=[ANN])
            for call in (served.stub.Retrieve(ASK), served.stub.Embed(embed), served.stub.GetInfo(pb.GetInfoRequest())):
                code, details = await refused(call)
                assert code == grpc.StatusCode.UNAVAILABLE
                assert (details["ErrorInfo"].reason, details["ErrorInfo"].domain) == ("NO_BUNDLE", "weir")
            assert served.sample("weir_requests_refused_total", reason="NO_BUNDLE") == 3
            await served.counted("GetInfo", "Unavailable")

    asyncio.run(scenario())


def test_an_invalid_request_lists_its_fields(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            bad = pb.RetrieveRequest(queries=[ANN, pb.Query(user_id="a", k=0), pb.Query(embedding=pb.Embedding())])
            code, details = await refused(served.stub.Retrieve(bad))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert details["ErrorInfo"].reason == "INVALID_REQUEST"
            fields = [violation.field for violation in details["BadRequest"].field_violations]
            assert fields == ["queries[1].k", "queries[2].embedding"]
            assert not served.started.is_set()
            await served.counted("Retrieve", "InvalidArgument")

    asyncio.run(scenario())


def test_pins_and_tags_have_their_own_codes(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            code, details = await refused(served.stub.Retrieve(pb.RetrieveRequest(queries=[ANN], bundle_version="v0")))
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert details["ErrorInfo"].metadata == {"requested_version": "v0", "loaded_version": "v1"}
            tagged = pb.RetrieveRequest(queries=[ANN], filter=pb.Filter(all_tags=["new"]))
            code, details = await refused(served.stub.Retrieve(tagged))
            assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert details["ErrorInfo"].reason == "NO_CATALOGUE"
            assert details["ErrorInfo"].metadata == {"fields": "filter.all_tags"}
            pinned = await served.stub.Retrieve(pb.RetrieveRequest(queries=[ANN], bundle_version="v1"))
            assert pinned.bundle_version == "v1"

    asyncio.run(scenario())


async def until(served: Served, waiting: int) -> None:
    """Wait until so many queries wait behind the one that runs."""
    assert await asyncio.to_thread(served.started.wait, 10)
    while served.sample("weir_queue_queries") != waiting:
        await asyncio.sleep(0.005)


def test_a_call_that_could_not_be_answered_in_time_is_refused_before_it_is_read(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            running = [asyncio.ensure_future(served.stub.Retrieve(ASK))]
            await until(served, 0)
            running += [asyncio.ensure_future(served.stub.Retrieve(ASK))]
            await until(served, 1)
            served.admission.pace = 0.5
            assert served.admission.under_way == 2
            unread = served.channel.stream_unary("/weir.retrieval.v1.RetrievalService/Retrieve")(timeout=1.9)
            code, details = await refused(unread)
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details["ErrorInfo"].reason == "QUEUE_FULL"
            assert details["RetryInfo"].retry_delay.ToMilliseconds() == 250
            await served.counted("Retrieve", "ResourceExhausted")
            assert served.sample("weir_requests_refused_total", reason="QUEUE_FULL") == 1
            assert (await served.stub.GetInfo(pb.GetInfoRequest(), timeout=1)).bundle_version == "v1"
            running += [asyncio.ensure_future(served.stub.Retrieve(ASK, timeout=seconds)) for seconds in (9, None)]
            await until(served, 3)
            served.gate.set()
            await asyncio.gather(*running)
            assert served.admission.under_way == 0
            assert served.admission.pace < 0.5

    asyncio.run(scenario())


def test_a_call_that_ends_without_a_message_is_cancelled(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            call = served.channel.stream_unary("/weir.retrieval.v1.RetrievalService/Embed")()
            await call.done_writing()
            assert (await refused(call))[0] == grpc.StatusCode.CANCELLED
            assert served.admission.under_way == 0

    asyncio.run(scenario())


def test_failed_calls_are_under_way_no_longer_and_say_nothing_of_the_pace(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            pace = served.admission.pace
            await refused(served.stub.Retrieve(pb.RetrieveRequest()))
            gone = served.stub.Retrieve(ASK)
            await until(served, 0)
            gone.cancel()
            while served.admission.under_way:
                await asyncio.sleep(0.005)
            assert served.admission.pace == pace
            late = served.stub.Retrieve(ASK, timeout=0.1)
            assert (await refused(late))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
            while served.admission.under_way:
                await asyncio.sleep(0.005)
            assert served.admission.pace > pace

    asyncio.run(scenario())


def test_after_refusals_nothing_is_taken_for_a_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            await served.stub.Retrieve(ASK, timeout=5)
            pauses: list[float] = []
            monkeypatch.setattr("weir.serving.rpc.admission.time.sleep", pauses.append)
            served.admission.under_way, served.admission.pace = 50, 1.0
            for _ in range(3):
                code, _ = await refused(served.stub.Retrieve(ASK, timeout=5))
                assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert pauses == [0.005] * 3
            served.admission.under_way = 0
            await served.stub.Retrieve(ASK, timeout=5)
            assert len(pauses) == 3

    asyncio.run(scenario())


def test_a_full_queue_is_refused_at_once_with_a_time_to_return(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store, queue=2) as served:
            running = asyncio.ensure_future(served.stub.Retrieve(ASK))
            await until(served, 0)
            waiting = [asyncio.ensure_future(served.stub.Retrieve(ASK)) for _ in range(2)]
            await until(served, 2)
            code, details = await refused(served.stub.Retrieve(ASK))
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details["ErrorInfo"].reason == "QUEUE_FULL"
            assert details["RetryInfo"].retry_delay.ToMilliseconds() == 250
            served.gate.set()
            await asyncio.gather(running, *waiting)
            assert served.searched == [1, 2]
            await served.counted("Retrieve", "ResourceExhausted")

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_nothing_is_searched_for_a_client_that_no_longer_waits(store: Store, how: str) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            running = asyncio.ensure_future(served.stub.Retrieve(ASK))
            await until(served, 0)
            late = served.stub.Retrieve(ASK, timeout=1.0 if how == "deadline" else None)
            await until(served, 1)
            if how == "deadline":
                code, _ = await refused(late)
                assert code == grpc.StatusCode.DEADLINE_EXCEEDED
            else:
                late.cancel()
            name, code_name = "Retrieve", "DeadlineExceeded" if how == "deadline" else "Canceled"
            await served.counted(name, code_name)
            served.gate.set()
            await running
            await served.stub.Retrieve(ASK)
            assert served.searched == [1, 1]
            dropped = [served.sample("weir_requests_dropped_total", reason=r) or 0 for r in ("cancelled", "deadline")]
            assert sum(dropped) == 1

    asyncio.run(scenario())


def test_a_fault_of_the_server_is_internal_and_tells_no_secrets(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            served.retriever = None  # type: ignore[assignment]
            code, details = await refused(served.stub.Retrieve(ASK))
            assert code == grpc.StatusCode.INTERNAL
            assert details["ErrorInfo"].reason == "INTERNAL"

    asyncio.run(scenario())


def test_request_ids_travel(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            sent = (("x-request-id", "r-1"), ("traceparent", "00-ab-cd-01"), ("other", "x"))
            call = served.stub.Retrieve(ASK, metadata=sent)
            received = dict(await call.initial_metadata())
            await call
            assert (received["x-request-id"], received["traceparent"]) == ("r-1", "00-ab-cd-01")
            assert "other" not in received

    asyncio.run(scenario())


def test_fallbacks_are_counted(store: Store, catalogue: Catalogue) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            answer = await served.stub.Retrieve(pb.RetrieveRequest(queries=[pb.Query(user_id="stranger"), ANN]))
            assert [hits.fallback for hits in answer.hits] == [True, False]
            assert list(answer.hits[0].item_ids) == catalogue.most_popular(10)
            assert served.sample("weir_fallbacks_total") == 1

    asyncio.run(scenario())


def test_answers_say_when_seen_items_are_not_all_known(store: Store) -> None:
    write_window(store, 0, [Event("ann", f"item-{n}", n) for n in range(BOUND + 1)] + [Event("bob", "item-1", 1)])

    async def scenario() -> None:
        async with serving(store) as served:
            served.gate.set()
            queries = [pb.Query(user_id="ann"), pb.Query(user_id="bob")]
            answer = await served.stub.Retrieve(pb.RetrieveRequest(queries=queries, exclude_seen=True))
            assert [hits.seen_bounded for hits in answer.hits] == [True, False]

    asyncio.run(scenario())


def test_a_poisonous_request_does_not_fail_its_neighbours(store: Store, catalogue: Catalogue) -> None:
    catalogue.embeddings[2 + 7] = 1e6
    write_bundle(store, "v2", catalogue, tower=poisonous_tower())

    async def scenario() -> None:
        async with serving(store, version="v2") as served:
            running = asyncio.ensure_future(served.stub.Retrieve(ASK))
            await until(served, 0)
            poison = pb.RetrieveRequest(queries=[pb.Query(history=pb.History(item_ids=["item-7"]))])
            bad = asyncio.ensure_future(served.stub.Retrieve(poison))
            good = [asyncio.ensure_future(served.stub.Retrieve(ASK)) for _ in range(2)]
            await until(served, 3)
            served.gate.set()
            answers = await asyncio.gather(running, *good)
            assert len({tuple(answer.hits[0].item_ids) for answer in answers}) == 1
            code, details = await refused(bad)
            assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
            assert served.searched == [1, 3, 1, 1, 1]

    asyncio.run(scenario())


def test_an_expensive_request_is_answered_in_parts_as_it_would_be_whole(store: Store) -> None:
    queries = [pb.Query(history=pb.History(item_ids=[f"item-{n}", "gone"]), k=5 + n) for n in range(8)]
    request = pb.RetrieveRequest(queries=queries, exclude_seen=True, filter=pb.Filter(allowed_item_ids=["item-9"] * 3))

    async def answered(config: ServingConfig) -> tuple[pb.RetrieveResponse, int]:
        async with serving(store, config=config) as served:
            served.gate.set()
            return await served.stub.Retrieve(request), len(served.searched)

    whole, once = asyncio.run(answered(CONFIG))
    parts, often = asyncio.run(answered(CONFIG.model_copy(update={"max_batch_cost": 250})))
    assert (once, often) == (1, 4)
    assert parts.hits == whole.hits


@pytest.mark.parametrize(
    ("method", "streams"),
    [
        ("weir.retrieval.v1.RetrievalService/Retrieve", False),
        ("weir.retrieval.v1.RetrievalService/GetInfo", False),
        ("grpc.health.v1.Health/Check", False),
        ("grpc.health.v1.Health/Watch", False),
        ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", True),
    ],
)
@pytest.mark.parametrize("data", [b"\xff" * 20, b"\xff" * 100_000])
def test_undecodable_bytes_are_an_invalid_argument(
    store: Store, caplog: pytest.LogCaptureFixture, method: str, streams: bool, data: bytes
) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            if streams:
                call = served.channel.stream_stream(f"/{method}")(iter([data]))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    [answer async for answer in call]
            elif method.endswith("Watch"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    [answer async for answer in served.channel.unary_stream(f"/{method}")(data)]
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await served.channel.unary_unary(f"/{method}")(data)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"{len(data)} bytes are no message" in str(caught.value.details())
            assert served.sample("weir_requests_refused_total", reason="UNDECODABLE") == 1

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert not [record for record in caplog.records if record.name != "asyncio"]


def test_a_request_of_too_many_fields_is_not_decoded(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            raw = served.channel.unary_unary("/weir.retrieval.v1.RetrievalService/Retrieve")
            code, details = await refused(raw(b"\x0a\x00" * 100_000))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            [violation] = details["BadRequest"].field_violations
            assert (
                violation.description
                == f"the request holds more than {CONFIG.limits.fields} fields: see GetInfo, limits"
            )

    asyncio.run(scenario())


def test_the_largest_request_within_the_limits_is_decoded(store: Store) -> None:
    async def scenario() -> None:
        limits = LimitsConfig(max_item_ids=6000, max_queries=4)
        async with serving(store, config=ServingConfig(limits=limits)) as served:
            served.gate.set()
            history = pb.History(item_ids=["item-1" + "x" * 40] * 1000)
            request = pb.RetrieveRequest(
                queries=[pb.Query(history=history, k=1)] * 4,
                params=pb.SearchParams(exact=True, nprobe=3, score_threshold=0.5),
                filter=pb.Filter(allowed_item_ids=["item-3"] * 1000),
                exclude_seen=True,
                excluded_item_ids=["item-4"] * 1000,
                bundle_version="v1",
            )
            answer = await served.stub.Retrieve(request)
            assert [list(hits.item_ids) for hits in answer.hits] == [["item-3"]] * 4

    asyncio.run(scenario())


def test_get_info_tells_every_limit(store: Store) -> None:
    async def scenario() -> None:
        async with serving(store) as served:
            info = await served.stub.GetInfo(pb.GetInfoRequest())
            told = {field.name: getattr(info.limits, field.name) for field in pb.Limits.DESCRIPTOR.fields}
            assert told == {
                **CONFIG.limits.model_dump(),
                "max_id_bytes": 512,
                "max_request_bytes": CONFIG.max_request_bytes,
            }

    asyncio.run(scenario())
