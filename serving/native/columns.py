"""Plain requests and their answers as columns, which is how the compiled front gives and takes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from weir.contracts import ItemKeys, Key
from weir.serving.queries import ByEmbedding, ByHistory, ByItem, ByUser, Hits, Query, Source

__all__ = ["Found", "Kind", "PlainBatch", "Wanted", "queries_of"]

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class Kind(IntEnum):
    """What a query is made from, as the front numbers it (`native/src/plain.rs`)."""

    USER = 0
    HISTORY = 1
    EMBEDDING = 2
    ITEM = 3


class PlainBatch(Protocol):
    """Requests that the front has taken for one batch; answered, or refused, once."""

    def wanted(self) -> tuple[I64, I64, I64, I64, F32]:
        """Return the columns of `Wanted`."""

    def ids(self) -> list[list[str]]:
        """Return the ids of each query's history, or its item; none for a user or an embedding."""

    def left_out(self) -> list[tuple[bool, I64]] | None:
        """Return for each request whether it leaves out what was seen, and the keys of what else; None: nothing all."""

    def requests(self) -> list[tuple[int, bool]]:
        """Return how many queries each request has, and whether nobody is shown its answer."""

    def answer(self, version: str, tokens: Sequence[str], found: dict[str, Any], seconds: tuple[float, float]) -> None:
        """Answer each request, with its token; `seconds` are those of tower and search."""

    def fail(self, code: int, message: str, details: bytes) -> None:
        """Refuse all requests."""

    def split(self) -> "list[PlainBatch]":
        """Return a batch for each request."""


class Wanted(NamedTuple):
    """What n queries want: their `keys`, one after the other, `lengths` (n,) of them, `kinds` (n,), and `k` (n,) items.

    The single key of a user or an item names it, those of a history its items, oldest first. Embeddings have none: they
    are the rows of `embeddings` (m, dimension), which is (m, 0) where some have other dimensions than others.
    """

    keys: I64
    lengths: I64
    kinds: I64
    k: I64
    embeddings: F32

    def of(self, kind: Kind) -> Bools:
        """Say which queries are of a kind."""
        there: Bools = self.kinds == kind
        return there


@dataclass(frozen=True, eq=False)
class Found:
    """Items found for n queries, best first, those of each behind those of the one before.

    `counts` (n,) says how many each has, `known` (keys,) which keys of `Wanted` have an item. `cold` is empty, or says
    it of each item.
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
        """Return what the front takes."""
        lists = ("counts", "fallback", "seen_bounded", "complete")
        return {**vars(self), **{name: getattr(self, name).tolist() for name in lists}}

    def hits(self) -> Iterator[Hits]:
        """Yield the hits of each query, for the lists that are kept."""
        ends = np.cumsum(self.counts).tolist()
        for (start, end), fallback in zip(pairwise([0, *ends]), self.fallback.tolist(), strict=True):
            vector = None if fallback else np.empty(0, np.float32)
            yield Hits(self.ids[start:end], self.scores[start:end].tolist(), [], vector)


def queries_of(wanted: Wanted, ids: Sequence[Sequence[str]]) -> Iterator[Query]:
    """Yield the queries one by one, with the `ids` of each."""
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
