"""A small synchronous client: plain values in, plain values out.

It retries nothing itself: gRPC does, for UNAVAILABLE and CANCELLED, by the service configuration below. Connections
to several replicas share the load (``dns:///name:port`` with a headless service).
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from contracts import UserError
from serving.access.channel import Channel
from serving.access.config import ClientConfig
from serving.status import DOMAIN
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc

__all__ = [
    "Hits",
    "Info",
    "Retrieval",
    "RetrievalClient",
    "RetrievalError",
    "by_embedding",
    "by_history",
    "by_item",
    "by_user",
]

_SERVICE_CONFIG: Final = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{"service": pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                # A server that is stopping may answer CANCELLED; a call that the caller cancels is not repeated.
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ],
}


class RetrievalError(UserError):
    """The server's refusal: the gRPC `code`, the stable `reason`, and the `violations` (field -> problem)."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", violations: dict[str, str] | None = None):
        super().__init__(f"{code.name}{f' ({reason})' if reason else ''}: {message}")
        self.code, self.reason, self.violations = code, reason, violations or {}
        self.retry_after: float | None = None

    @classmethod
    def of(cls, error: grpc.RpcError) -> Self:
        """Read the details that came with a failed call."""
        call: Any = error
        found = cls(call.code(), call.details() or "")
        status = rpc_status.from_call(call)
        for detail in status.details if status is not None else ():
            found._read(detail)
        return found

    def explain(self) -> list[str]:
        """Return what to do where no server answers, else the refusal and its violations."""
        if self.code is grpc.StatusCode.UNAVAILABLE and not self.reason:
            start = "start one with `weir up` or `weir serve`, or name it with --target"
            return [f"no server answers: {start}; if it speaks TLS, set `client` ({self})"]
        return [f"the server refused: {self}", *(f"  {field}: {problem}" for field, problem in self.violations.items())]

    def _read(self, detail: Any) -> None:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            self.reason = info.reason
            self.args = (f"{self.code.name} ({info.reason}): {str(self).partition(': ')[2]}",)
        elif detail.Unpack(bad):
            self.violations = {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            self.retry_after = retry.retry_delay.ToNanoseconds() / 1e9


@dataclass(frozen=True)
class Hits:
    """The items found for one query, best first; `fallback`: they are only popular items.

    `seen_bounded`: not all that the user has seen is known, so that seen items may be among them. `complete`: there
    are k items that the request lets pass.
    """

    item_ids: list[str]
    scores: list[float]
    missing_item_ids: list[str]
    fallback: bool
    seen_bounded: bool = False
    complete: bool = True


@dataclass(frozen=True)
class Retrieval:
    """The answer to a call: hits per query, and which bundle gave them; `seconds` are the server's own, by stage."""

    hits: list[Hits]
    bundle_version: str
    attribution_token: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class Info:
    """What is served; times are seconds since 1970.

    `delta_updates` is ``in_place`` where a call that waits may be answered from the next version, else ``beside``.
    """

    bundle_version: str
    sketch_version: str
    trained_sequence: int
    index_type: str
    index_parameters: dict[str, float]
    items: int
    dimension: int
    metric: str
    max_event_time: float
    servable_time: float
    evaluation: dict[str, float]
    limits: dict[str, int]
    software_version: str
    bundle_software_version: str
    delta_updates: str = "unspecified"


def by_user(user_id: str, k: int | None = None) -> pb.Query:
    """Ask for a user."""
    return pb.Query(user_id=user_id, k=k)


def by_history(item_ids: Sequence[str], k: int | None = None) -> pb.Query:
    """Ask for a user with this history, oldest first."""
    return pb.Query(history=pb.History(item_ids=item_ids), k=k)


def by_embedding(values: Sequence[float], k: int | None = None) -> pb.Query:
    """Ask with a vector of the bundle's space."""
    return pb.Query(embedding=pb.Embedding(values=values), k=k)


def by_item(item_id: str, k: int | None = None) -> pb.Query:
    """Ask for items like this one."""
    return pb.Query(item_id=item_id, k=k)


class RetrievalClient:
    """Calls the service at `target` (``host:port``); every call ends within `timeout` seconds.

    `config` says how it is reached. Use it as a context manager or call `close`. It may be shared between threads. All
    methods raise `RetrievalError`, and `ValueError` once it is closed. Raises `OSError` or `ValueError` where a file of
    `config` cannot be used.
    """

    def __init__(self, target: str, timeout: float = 10.0, config: ClientConfig | None = None) -> None:
        self._timeout = timeout
        options = [
            ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
            ("grpc.max_receive_message_length", -1),
            # gRPC's half a minute is longer than a rollout of a few servers takes: all that it knew would be gone.
            ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ]
        self._channel = Channel(target, config, options)
        self._stub_on = lru_cache(maxsize=1)(retrieval_pb2_grpc.RetrievalServiceStub)
        self._lock, self._is_closed = threading.Lock(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._is_closed = True
            self._channel.close()

    def retrieve(
        self,
        queries: Sequence[pb.Query],
        *,
        exact: bool = False,
        nprobe: int = 0,
        score_threshold: float | None = None,
        exclude_seen: bool = False,
        excluded_item_ids: Sequence[str] = (),
        allowed_item_ids: Sequence[str] = (),
        any_tags: Sequence[str] = (),
        all_tags: Sequence[str] = (),
        none_tags: Sequence[str] = (),
        max_per_tag: int | None = None,
        tag_prefix: str = "",
        bundle_version: str = "",
        probe: bool = False,
    ) -> Retrieval:
        """Return the top items of each query; see the proto's comments for what the parameters mean."""
        request = pb.RetrieveRequest(
            queries=queries,
            params=pb.SearchParams(exact=exact, nprobe=nprobe, score_threshold=score_threshold),
            filter=pb.Filter(
                any_tags=any_tags, all_tags=all_tags, none_tags=none_tags, allowed_item_ids=allowed_item_ids
            ),
            exclude_seen=exclude_seen,
            excluded_item_ids=excluded_item_ids,
            bundle_version=bundle_version,
            diversity=None if max_per_tag is None else pb.Diversity(max_per_tag=max_per_tag, tag_prefix=tag_prefix),
            probe=probe,
        )
        answer = self._call("Retrieve", request)
        stages = ("total", "queue", "tower", "search")
        return Retrieval(
            hits=[
                Hits(list(h.item_ids), list(h.scores), list(h.missing_item_ids), h.fallback, h.seen_bounded, h.complete)
                for h in answer.hits
            ],
            bundle_version=answer.bundle_version,
            attribution_token=answer.attribution_token,
            seconds={stage: getattr(answer.timing, stage).ToNanoseconds() / 1e9 for stage in stages},
        )

    def embed(self, queries: Sequence[pb.Query]) -> list[list[float] | None]:
        """Return the vector of each query; None where the bundle knows nothing about it."""
        answer = self._call("Embed", pb.EmbedRequest(queries=queries))
        return [None if vector.fallback else list(vector.values) for vector in answer.vectors]

    def info(self) -> Info:
        """Return what is served."""
        answer: pb.GetInfoResponse = self._call("GetInfo", pb.GetInfoRequest())
        return Info(
            bundle_version=answer.bundle_version,
            sketch_version=answer.sketch_version,
            trained_sequence=answer.trained_sequence,
            index_type=answer.index.type,
            index_parameters=dict(answer.index.parameters),
            items=answer.items,
            dimension=answer.dimension,
            metric=pb.Metric.Name(answer.metric).removeprefix("METRIC_").lower(),
            max_event_time=answer.max_event_time.ToMilliseconds() / 1e3,
            servable_time=answer.servable_time.ToNanoseconds() / 1e9,
            evaluation=dict(answer.evaluation),
            limits={limit.name: getattr(answer.limits, limit.name) for limit in pb.Limits.DESCRIPTOR.fields},
            software_version=answer.software_version,
            bundle_software_version=answer.bundle_software_version,
            delta_updates=pb.DeltaUpdates.Name(answer.delta_updates).removeprefix("DELTA_UPDATES_").lower(),
        )

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub(), method)(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise RetrievalError.of(error) from error

    def _stub(self) -> retrieval_pb2_grpc.RetrievalServiceStub:
        # A stub made on a closed channel is a segmentation fault in gRPC.
        with self._lock:
            if self._is_closed:
                raise ValueError("this client is closed")
            return self._stub_on(self._channel.open())
