"""Build query messages from plain values: by user, history, embedding or item.

Ids are texts. Values with a unique spelling are converted: whole numbers in decimal, bytes of UTF-8, UUIDs in their
canonical form. Any other value is refused: its `str` may be another id, such as 7.0.
"""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import numpy as np
import numpy.typing as npt

from weir.retrieval.v1 import retrieval_pb2 as pb

__all__ = ["Features", "Id", "Ids", "by_embedding", "by_history", "by_item", "by_user", "id_texts"]

Id = str | bytes | int | np.integer | UUID
"""Types accepted as an id or a tag."""

Ids = Iterable[Id] | npt.NDArray[np.str_] | npt.NDArray[np.bytes_] | npt.NDArray[np.integer]
"""Types accepted as a list of ids: any iterable (n,) except a text or a mapping."""

Features = Mapping[str, str | Sequence[str] | float]
"""User features by name: a text, several texts, or a number."""


def by_user(user_id: Id, k: int | None = None, *, features: Features | None = None) -> pb.Query:
    """Query by user; `features` are user features by name: a text, several texts, or a number.

    Raises `TypeError` for an invalid feature or id.
    """
    return pb.Query(user_id=_id_text("user_id", user_id), k=k, features=_features(features))


def by_history(item_ids: Ids, k: int | None = None, *, features: Features | None = None) -> pb.Query:
    """Query by a history of items, oldest first, with features as in `by_user`; raises `TypeError` as `by_user`."""
    return pb.Query(history=pb.History(item_ids=id_texts("item_ids", item_ids)), k=k, features=_features(features))


def by_embedding(values: npt.ArrayLike, k: int | None = None) -> pb.Query:
    """Query by a vector (dimension,) of the bundle's space; raises `ValueError` for another shape."""
    vector = np.asarray(values, np.float32)
    if vector.ndim != 1:
        raise ValueError(f"a query is one vector, of shape (dimension,): this is {vector.shape}; send a query per row")
    return pb.Query(embedding=pb.Embedding(values=vector.tolist()), k=k)


def by_item(item_id: Id, k: int | None = None) -> pb.Query:
    """Query for items similar to this one; raises `TypeError` for an invalid id."""
    return pb.Query(item_id=_id_text("item_id", item_id), k=k)


def id_texts(name: str, given: Ids) -> list[str]:
    """Convert a list of ids or tags to texts; `name` is its name in errors.

    Raises `TypeError` for anything but a list and for an invalid id in it, `ValueError` for bytes that are not UTF-8.
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
