"""The coder of the large elements of the pipelines."""

import pickle
from typing import Protocol, TypeVar

import apache_beam as beam
from apache_beam.coders.typecoders import registry

__all__ = ["ElementCoder", "large"]


class _Large(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Large)


class ElementCoder(beam.coders.Coder):
    """Pickles, as Beam would; but says how large an element is without pickling it.

    Beam asks for the size of nearly every element where they are few, after each step: with its own coder an element
    is pickled three times as often as it travels.
    """

    def encode(self, value: _Large) -> bytes:
        """Return the pickle."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> _Large:
        """Return the element."""
        found: _Large = pickle.loads(encoded)  # noqa: S301 - made by another worker of this pipeline
        return found

    def estimate_size(self, value: _Large) -> int:
        """Return about how many bytes `encode` would return."""
        return value.nbytes


def large(cls: type[T]) -> type[T]:
    """Have Beam use `ElementCoder` for this type where a collection is declared to hold it; decorates the class."""
    registry.register_coder(cls, ElementCoder)
    return cls
