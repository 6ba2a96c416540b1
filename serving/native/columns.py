"""The compiled front's package, and the columns in which it passes plain requests and takes answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from weir.contracts import ItemKeys, Key
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser, Hits, Query, Source

__all__ = ["Compiled", "Found", "Kind", "PlainBatch", "Wanted", "compiled", "queries_of"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

F32 = npt.NDArray[np.float32]


class Compiled(Protocol):
    """The contents of the compiled front's package ``weir_front``."""

    @property
    def Front(self) -> Callable[..., Any]:  # noqa: N802 - a class
        """The class of the front, which listens on sockets."""

    def look_up(self, wanted: I64, keys: I64, rows: I64, later_keys: I64, later_rows: I64, /) -> I64:
        """Return the row of each of the `wanted` keys (n,), -1 for unknown keys, as `ItemRows.look_up` does.

        `keys` and `rows` are the map of the base, `later_keys` and `later_rows` the changes of deltas.
        """

    def tower_inputs(self, rows: I64, lengths: I64, length: int, first: int, /) -> tuple[I64, Bools]:
        """Return the tower's input rows of n histories, (n, length), and their mask (n, length).

        `rows` are the concatenated histories, -1 for unknown items, and `lengths` (n,) the number of rows of each. Only
        the newest `length` known rows count; `first` is added to each row.
        """


def compiled() -> Compiled:
    """Import the compiled front's package; raises `ValueError` if it is not installed."""
    try:
        import weir_front  # noqa: PLC0415 - a package of its own, which is optional
    except ModuleNotFoundError:
        raise ValueError(
            "serving.front = native needs the package weir-front: `make native` builds it from weir's sources with "
            "Rust, and so does `pip install ./native`"
        ) from None
    package: Compiled = weir_front
    return package


class Kind(IntEnum):
    """Kind of a query's source, numbered as in `native/src/plain.rs`."""

    USER = 0
    HISTORY = 1
    EMBEDDING = 2
    ITEM = 3


class PlainBatch(Protocol):
    """A batch of requests from the front; it must be answered or refused exactly once."""

    def wanted(self) -> tuple[I64, I64, I64, I64, F32]:
        """Return the columns of the queries, in the order of the fields of `Wanted`."""

    def ids(self) -> list[list[str]]:
        """Return the ids of each query's history or item; empty for a user or an embedding."""

    def left_out(self) -> list[tuple[bool, I64]] | None:
        """Return each request's `exclude_seen` and its excluded keys; None if no request excludes anything."""

    def requests(self) -> list[tuple[int, bool]]:
        """Return the number of queries of each request, and whether it is a probe."""

    def answer(self, version: str, tokens: Sequence[str], found: dict[str, Any], seconds: tuple[float, float]) -> None:
        """Answer all requests with the columns `found` and a token each; `seconds` were spent in tower and search."""

    def fail(self, code: int, message: str, details: bytes) -> None:
        """Refuse all requests with a gRPC code, a message and serialised status details."""

    def split(self) -> "list[PlainBatch]":
        """Return a batch for each request of this batch."""


class Wanted(NamedTuple):
    """n queries as columns: their keys (concatenated, with `lengths` (n,)), their `kinds` (n,), and their `k` (n,).

    A query by user or item has a single key, a query by history the keys of its items, oldest first. The m queries by
    embedding have no keys; `embeddings` is (m, dimension), or (m, 0) if their dimensions differ.
    """

    keys: I64
    lengths: I64
    kinds: I64
    k: I64
    embeddings: F32

    def of(self, kind: Kind) -> Bools:
        """Return a mask (n,) of the queries of a kind."""
        there: Bools = self.kinds == kind
        return there


@dataclass(frozen=True, eq=False)
class Found:
    """Items found for n queries: their `ids` and `scores`, best first, concatenated in the order of the queries.

    `counts` (n,) is the number of items of each query, and `known` (keys,) marks the keys of `Wanted` that the bundle
    has. `fallback`, `seen_bounded` and `complete` (n,) are as in `weir.serving.search.queries.Hits`. `cold` marks cold
    items; empty if no item is cold.
    """

    ids: list[str]
    scores: F32
    counts: I64
    known: Bools
    fallback: Bools
    seen_bounded: Bools
    complete: Bools
    cold: Bools

    def columns(self) -> dict[str, Any]:
        """Return the columns by name, in the form that the compiled front accepts."""
        lists = ("counts", "fallback", "seen_bounded", "complete")
        return {**vars(self), **{name: getattr(self, name).tolist() for name in lists}}

    def hits(self) -> Iterator[Hits]:
        """Yield the hits of each query, for served lists."""
        ends = np.cumsum(self.counts).tolist()
        for (start, end), fallback in zip(pairwise([0, *ends]), self.fallback.tolist(), strict=True):
            vector = None if fallback else np.empty(0, np.float32)
            yield Hits(self.ids[start:end], self.scores[start:end].tolist(), [], vector)


def queries_of(wanted: Wanted, ids: Sequence[Sequence[str]]) -> Iterator[Query]:
    """Yield each query of the columns; `ids` are the ids of each query's history or item."""
    ends, embeddings = np.cumsum(wanted.lengths).tolist(), iter(wanted.embeddings)
    rows = zip(pairwise([0, *ends]), wanted.kinds.tolist(), wanted.k.tolist(), ids, strict=True)
    for (start, end), kind, k, spelled in rows:
        yield Query(_source(Kind(kind), wanted.keys[start:end], spelled, embeddings), k)


def _source(kind: Kind, keys: I64, ids: Sequence[str], embeddings: Iterator[F32]) -> Source:
    match kind:
        case Kind.USER:
            return ByUser(Key(int(keys[0])))
        case Kind.HISTORY:
            return ByHistory(tuple(ids), ItemKeys(keys))
        case Kind.EMBEDDING:
            return ByEmbedding(next(embeddings))
        case Kind.ITEM:
            return ByItem(ids[0], Key(int(keys[0])))
