"""Queries as callers write them: plain values to messages."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from weir.retrieval.v1 import retrieval_pb2 as pb

__all__ = ["Features", "by_embedding", "by_history", "by_item", "by_user"]

Features = Mapping[str, str | Sequence[str] | float]
"""What is known of a user, by name: a text, several, or a number."""


def by_user(user_id: str, k: int | None = None, *, features: Features | None = None) -> pb.Query:
    """Ask for a user; `features` are what is known besides: a text, several, or a number, by name.

    Raises `TypeError` for a feature that is none of these.
    """
    return pb.Query(user_id=user_id, k=k, features=_features(features))


def by_history(
    item_ids: Sequence[str] | npt.NDArray[np.str_], k: int | None = None, *, features: Features | None = None
) -> pb.Query:
    """Ask for a user with this history, oldest first, and with features as in `by_user`."""
    return pb.Query(history=pb.History(item_ids=map(str, item_ids)), k=k, features=_features(features))


def by_embedding(values: npt.ArrayLike, k: int | None = None) -> pb.Query:
    """Ask with a vector (dimension,) of the bundle's space; raises `ValueError` for what is no vector."""
    vector = np.asarray(values, np.float32)
    if vector.ndim != 1:
        raise ValueError(f"a query is one vector, of shape (dimension,): this is {vector.shape}; send a query per row")
    return pb.Query(embedding=pb.Embedding(values=vector.tolist()), k=k)


def by_item(item_id: str, k: int | None = None) -> pb.Query:
    """Ask for items like this one."""
    return pb.Query(item_id=item_id, k=k)


def _features(given: Features | None) -> dict[str, pb.Feature]:
    return {name: _feature(name, said) for name, said in (given or {}).items()}


def _feature(name: str, said: object) -> pb.Feature:
    if isinstance(said, str):
        return pb.Feature(values=[said])
    if isinstance(said, int | float | np.number) and not isinstance(said, bool):
        return pb.Feature(number=float(said))
    if isinstance(said, Sequence) and all(isinstance(one, str) for one in said):
        return pb.Feature(values=said)
    raise TypeError(f"feature {name!r} is {said!r}; allowed are a text, several texts, or a number")
