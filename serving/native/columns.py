"""Plain requests and their answers as columns, which is how the compiled front gives and takes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from contracts import ItemKeys, Key
from serving.queries import ByHistory, ByUser, Hits, Query

__all__ = ["Found", "PlainBatch", "Wanted", "queries_of"]

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class PlainBatch(Protocol):
    """Requests that the front has taken for one batch; answered, or refused, once."""

    def wanted(self) -> tuple[I64, I64, Bools, I64]:
        """Return the columns of `Wanted`."""

    def ids(self) -> list[list[str]]:
        """Return the ids of each query's history; none for a user."""

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
    """What n queries want: their `keys`, one after the other, `lengths` (n,) of them, and `k` (n,) items each.

    The single key of `users` (n,) names a user, those of others the items of a history, oldest first.
    """

    keys: I64
    lengths: I64
    users: Bools
    k: I64

    @property
    def of_users(self) -> Bools:
        """Say which keys are those of users."""
        return np.repeat(self.users, self.lengths)


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
    ends = np.cumsum(wanted.lengths).tolist()
    rows = zip(pairwise([0, *ends]), wanted.users.tolist(), wanted.k.tolist(), ids, strict=True)
    for (start, end), is_user, k, spelled in rows:
        keys = wanted.keys[start:end]
        source = ByUser(Key(int(keys[0]))) if is_user else ByHistory(tuple(spelled), ItemKeys(keys))
        yield Query(source, k)
