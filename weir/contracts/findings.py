"""What a verification can find wrong with a file."""

from enum import StrEnum
from typing import NamedTuple

from weir.contracts.errors import CorruptArtefactError
from weir.contracts.storage import Store

__all__ = ["Finding", "Kind", "fault_of"]


class Kind(StrEnum):
    """What is wrong with a file."""

    DAMAGED = "damaged"
    MISSING = "missing"
    FOREIGN = "foreign"


class Finding(NamedTuple):
    """One file at fault, its name relative to the store."""

    kind: Kind
    name: str
    problem: str


def fault_of(store: Store, error: CorruptArtefactError) -> Finding:
    """Return what an error says of a file."""
    kind = Kind.MISSING if error.problem.startswith("is missing") else Kind.DAMAGED
    return Finding(kind, error.path.removeprefix(store.path("") + "/"), error.problem)
