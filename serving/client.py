"""A small blocking client: plain values and numpy arrays in and out. `weir.serving.aio` is the same for asyncio.

Ids are texts. Values with a unique spelling are converted: whole numbers in decimal, bytes of UTF-8, UUIDs in their
canonical form. Any other value is refused, because its `str` may be another id, as for 7.0.

gRPC retries UNAVAILABLE and CANCELLED (`SERVICE_CONFIG`); the client itself retries nothing. Calls are spread over
several replicas (``dns:///name:port`` with a headless service).
"""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self, TypedDict, Unpack
from uuid import UUID

import grpc
import numpy as np
import numpy.typing as npt
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from weir.contracts import UserError
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access.channel import Channel
from weir.serving.access_config import ClientConfig
from weir.serving.rpc.status import DOMAIN

__all__ = [
    "Features",
    "Hits",
    "Id",
    "Ids",
    "Info",
    "Retrieval",
    "RetrievalClient",
    "RetrievalError",
    "Wishes",
    "by_embedding",
    "by_history",
    "by_item",
    "by_user",
    "id_texts",
]

Id = str | bytes | int | np.integer | UUID
"""Types accepted as an id or a tag."""

Ids = Iterable[Id] | npt.NDArray[np.str_] | npt.NDArray[np.bytes_] | npt.NDArray[np.integer]
"""Types accepted as a list of ids: any iterable (n,) except a text or a mapping."""

Features = Mapping[str, str | Sequence[str] | float]
"""User features by name: a text, several texts, or a number."""

Floats = npt.NDArray[np.float32]

_TOO_LARGE: Final = "message larger than max"
"""Part of gRPC's error message for a message that is too large; such an error has no details."""
_SMALLER: Final = "send less in a request, see limits.max_request_bytes of `info`"

SERVICE_CONFIG: Final = {
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
"""gRPC service configuration for load balancing and retries, usable by any client (docs/clients.md)."""

CHANNEL_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ("grpc.max_receive_message_length", -1),
    # gRPC's default of 30 s is longer than a rollout of a few servers: all addresses it knows would be gone.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # A process that dies resets its connections. gRPC's default backoff of 1 s is longer than all retries together.
    ("grpc.initial_reconnect_backoff_ms", 100),
]


class RetrievalError(UserError):
    """A failed call: its gRPC `code`, the server's stable `reason`, and the `violations` (field -> problem)."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", violations: dict[str, str] | None = None):
        super().__init__(f"{code.name}{f' ({reason})' if reason else ''}: {message}")
        self.code, self.reason, self.violations = code, reason, violations or {}
        self.retry_after: float | None = None

    @classmethod
    def of(cls, error: grpc.RpcError) -> Self:
        """Build the error from the status details of a failed call."""
        call: Any = error
        found = cls(call.code(), call.details() or "")
        status = rpc_status.from_call(call)
        for detail in status.details if status is not None else ():
            found._read(detail)
        if found.code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in (call.details() or ""):
            found.reason = "MESSAGE_TOO_LARGE"
            found.args = (f"{found.code.name} ({found.reason}): {call.details()}: {_SMALLER}",)
        return found

    def explain(self) -> list[str]:
        """Return lines for the user: what to do if no server answers; otherwise the error and its violations."""
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


def by_user(user_id: Id, k: int | None = None, *, features: Features | None = None) -> pb.Query:
    """Return a query by user; `features` are user features by name: a text, several texts, or a number.

    Raises `TypeError` for an invalid feature or id.
    """
    return pb.Query(user_id=_id_text("user_id", user_id), k=k, features=_features(features))


def by_history(item_ids: Ids, k: int | None = None, *, features: Features | None = None) -> pb.Query:
    """Return a query by a history of items, oldest first; `features` and errors as in `by_user`."""
    return pb.Query(history=pb.History(item_ids=id_texts("item_ids", item_ids)), k=k, features=_features(features))


def by_embedding(values: npt.ArrayLike, k: int | None = None) -> pb.Query:
    """Return a query by a vector (dimension,) in the bundle's space; raises `ValueError` for another shape."""
    vector = np.asarray(values, np.float32)
    if vector.ndim != 1:
        raise ValueError(f"a query is one vector, of shape (dimension,): this is {vector.shape}; send a query per row")
    return pb.Query(embedding=pb.Embedding(values=vector.tolist()), k=k)


def by_item(item_id: Id, k: int | None = None) -> pb.Query:
    """Return a query for the items similar to an item; raises `TypeError` for an invalid id."""
    return pb.Query(item_id=_id_text("item_id", item_id), k=k)


def id_texts(name: str, given: Ids) -> list[str]:
    """Convert a list of ids or tags to texts; `name` names the list in errors.

    Raises `TypeError` if `given` is not a list or has an invalid id, `ValueError` for bytes that are not UTF-8.
    """
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name}: a list of ids is wanted, a text came; write [{given!r:.80}]")
    if (
        isinstance(given, Mapping)
        or not isinstance(given, Iterable)
        or (isinstance(given, np.ndarray) and not given.ndim)
    ):
        raise TypeError(f"{name}: a list of ids is wanted, {type(given).__name__} came")
    return [one if type(one) is str else _id_text(f"{name}[{place}]", one) for place, one in enumerate(given)]


def _id_text(name: str, given: object) -> str:
    match given:
        case str():
            # `str()` of an enum member gives another text.
            return str.__str__(given)
        case bytes():
            try:
                return given.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{name} is {given[:40]!r}, which is no UTF-8: {error.reason}") from None
        case bool() | np.bool_():
            pass
        case int() | np.integer():
            return str(int(given))
        case UUID():
            return str(given)
    kind = "None" if given is None else type(given).__name__
    raise TypeError(
        f"{name} is {given!r:.80} ({kind}), no id; allowed are a text, bytes of UTF-8, a whole number or a UUID"
    )


def _features(given: Features | None) -> dict[str, pb.Feature]:
    return {name: _feature(name, said) for name, said in (given or {}).items()}


def _feature(name: str, said: object) -> pb.Feature:
    if isinstance(said, str):
        return pb.Feature(values=[said])
    if isinstance(said, int | float | np.number) and not isinstance(said, bool):
        return pb.Feature(number=float(said))
    if isinstance(said, Sequence | np.ndarray) and all(isinstance(one, str) for one in said):
        return pb.Feature(values=[str.__str__(one) for one in said])
    raise TypeError(f"feature {name!r} is {said!r}; allowed are a text, several texts, or a number")


@dataclass(frozen=True, eq=False)
class Hits:
    """The items found for one query, best first, with their `scores` (items,).

    `missing_item_ids` are items of the query that the bundle lacks. `fallback`: these are only the popular items.
    `seen_bounded`: the stored history is incomplete, so items that the user has seen may be among these. `complete`: at
    least k items are eligible for the request. `cold`: whether each item is a cold item, found by its features alone;
    empty if no item is. `missing_features`: features of the query that the bundle does not know.
    """

    item_ids: list[str]
    scores: Floats
    missing_item_ids: list[str]
    fallback: bool
    seen_bounded: bool = False
    complete: bool = True
    cold: list[bool] = field(default_factory=list)
    missing_features: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The answer to a Retrieve call: hits per query, and the bundle's version; `seconds` are server times by stage."""

    hits: list[Hits]
    bundle_version: str
    attribution_token: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class Info:
    """The served bundle and the server's limits; times are seconds since 1970.

    `delta_updates` is ``in_place`` if a waiting call may be answered from the next version, else ``beside``. `loaded`
    has the variant and version of each loaded bundle; each can be pinned; the champion's bundle comes first.
    `user_features` are the feature names that a query may give, by kind: ``categorical`` or ``dense``.
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
    loaded: tuple[tuple[str, str], ...] = ()
    user_features: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Wishes(TypedDict, total=False):
    """Options of a Retrieve call in addition to its queries; the .proto file documents each."""

    exact: bool
    nprobe: int
    score_threshold: float | None
    exclude_seen: bool
    excluded_item_ids: Ids
    allowed_item_ids: Ids
    any_tags: Ids
    all_tags: Ids
    none_tags: Ids
    max_per_tag: int | None
    tag_prefix: str
    bundle_version: str
    probe: bool


def retrieve_request(queries: Sequence[pb.Query], wishes: Wishes) -> pb.RetrieveRequest:
    """Build the request of a Retrieve call.

    Raises `TypeError` for an unknown option, for an invalid id, or if queries or ids are not a list.
    """
    if unknown := wishes.keys() - Wishes.__annotations__.keys():
        raise TypeError(f"retrieve knows no {', '.join(sorted(unknown))}; it knows {', '.join(Wishes.__annotations__)}")
    cap = wishes.get("max_per_tag")

    def texts(name: str) -> list[str] | None:
        given: Any = wishes.get(name)
        return None if given is None else id_texts(name, given)

    return pb.RetrieveRequest(
        queries=_several(queries),
        params=pb.SearchParams(
            exact=wishes.get("exact", False),
            nprobe=wishes.get("nprobe", 0),
            score_threshold=wishes.get("score_threshold"),
        ),
        filter=pb.Filter(
            any_tags=texts("any_tags"),
            all_tags=texts("all_tags"),
            none_tags=texts("none_tags"),
            allowed_item_ids=texts("allowed_item_ids"),
        ),
        exclude_seen=wishes.get("exclude_seen", False),
        excluded_item_ids=texts("excluded_item_ids"),
        bundle_version=wishes.get("bundle_version", ""),
        diversity=None if cap is None else pb.Diversity(max_per_tag=cap, tag_prefix=wishes.get("tag_prefix", "")),
        probe=wishes.get("probe", False),
    )


def embed_request(queries: Sequence[pb.Query]) -> pb.EmbedRequest:
    """Build the request of an Embed call; raises `TypeError` if `queries` is not a list."""
    return pb.EmbedRequest(queries=_several(queries))


def _several(queries: Sequence[pb.Query]) -> Sequence[pb.Query]:
    if isinstance(queries, pb.Query | str | bytes):
        kind = "one query" if isinstance(queries, pb.Query) else "a text"
        raise TypeError(f"queries: a list of queries is wanted, {kind} came; write [by_user(...)]")
    return queries


def retrieval_of(answer: pb.RetrieveResponse) -> Retrieval:
    """Convert the answer of a Retrieve call to plain values."""
    stages = ("total", "queue", "tower", "search")
    return Retrieval(
        hits=[
            Hits(
                item_ids=list(h.item_ids),
                scores=np.fromiter(h.scores, np.float32, len(h.scores)),
                missing_item_ids=list(h.missing_item_ids),
                fallback=h.fallback,
                seen_bounded=h.seen_bounded,
                complete=h.complete,
                cold=list(h.cold),
                missing_features=list(h.missing_features),
            )
            for h in answer.hits
        ],
        bundle_version=answer.bundle_version,
        attribution_token=answer.attribution_token,
        seconds={stage: getattr(answer.timing, stage).ToNanoseconds() / 1e9 for stage in stages},
    )


def vectors_of(answer: pb.EmbedResponse) -> list[Floats | None]:
    """Return the vector (dimension,) of each query; None if the bundle has no data for the query."""
    return [None if one.fallback else np.fromiter(one.values, np.float32, len(one.values)) for one in answer.vectors]


def info_of(answer: pb.GetInfoResponse) -> Info:
    """Convert the answer of a GetInfo call to plain values."""
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
        loaded=tuple((one.variant, one.bundle_version) for one in answer.loaded),
        user_features={
            "categorical": tuple(answer.user_features.categorical),
            "dense": tuple(answer.user_features.dense),
        },
    )


class RetrievalClient:
    """A blocking client of the service at `target` (``host:port``); every call ends within `timeout` seconds.

    `config` has TLS and token settings. Use the client as a context manager or call `close`; threads may share it. All
    methods raise `RetrievalError`, and `ValueError` after `close`. The constructor raises `OSError` or `ValueError` if
    a file of `config` cannot be used.
    """

    def __init__(self, target: str, timeout: float = 10.0, config: ClientConfig | None = None) -> None:
        self._timeout = timeout
        self._channel = Channel(target, config, CHANNEL_OPTIONS)
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
        self, queries: Sequence[pb.Query], *, timeout: float | None = None, **wishes: Unpack[Wishes]
    ) -> Retrieval:
        """Return the top items of each query; `timeout` (seconds) replaces the client's timeout for this call."""
        return retrieval_of(self._call("Retrieve", retrieve_request(queries, wishes), timeout))

    def embed(self, queries: Sequence[pb.Query], *, timeout: float | None = None) -> list[Floats | None]:
        """Return the vector (dimension,) of each query; None if the bundle has no data for the query."""
        return vectors_of(self._call("Embed", embed_request(queries), timeout))

    def info(self, *, timeout: float | None = None) -> Info:
        """Describe the served bundle and the server's limits."""
        return info_of(self._call("GetInfo", pb.GetInfoRequest(), timeout))

    def _call(self, method: str, request: Any, timeout: float | None) -> Any:
        try:
            return getattr(self._stub(), method)(request, timeout=self._timeout if timeout is None else timeout)
        except grpc.RpcError as error:
            raise RetrievalError.of(error) from error

    def _stub(self) -> retrieval_pb2_grpc.RetrievalServiceStub:
        # Creating a stub on a closed channel crashes gRPC with a segmentation fault.
        with self._lock:
            if self._is_closed:
                raise ValueError("this client is closed")
            return self._stub_on(self._channel.open())
