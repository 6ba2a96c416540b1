"""User features of examples as lines of numbers, which travel with the examples: through files and between ranks."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts.feature_weights import FeatureWeights, buckets_of
from weir.contracts.user_features import UserFeatures

__all__ = ["NO_FEATURES", "Layout", "UserLines"]

Lines = npt.NDArray[np.int32]

_UNKNOWN: Final = -1
"""Of a bucket; the bits of a number that are all set are a NaN."""

_PER_NUMBER: Final = 2
"""A number has 64 bits."""


class Layout(NamedTuple):
    """What the columns of lines are: of each categorical feature as many buckets, then the numbers, bit by bit."""

    widths: dict[str, int]
    dense: tuple[str, ...]

    @classmethod
    def of(cls, found: UserFeatures, buckets: int) -> Self:
        """Return the layout for a window; without `buckets` nothing of it is read."""
        return cls(dict(found.categorical), tuple(found.dense)) if buckets else cls({}, ())

    @classmethod
    def joined(cls, parts: Sequence["Layout"]) -> Self:
        """Return one that has room for what each of the parts has."""
        widths: dict[str, int] = {}
        for name, width in (pair for part in parts for pair in part.widths.items()):
            widths[name] = max(widths.get(name, 0), width)
        return cls(widths, tuple(dict.fromkeys(name for part in parts for name in part.dense)))

    @property
    def columns(self) -> dict[str, slice]:
        """Where each feature is in a line."""
        found: dict[str, slice] = {}
        at = 0
        for name, width in (*self.widths.items(), *((name, _PER_NUMBER) for name in self.dense)):
            found[name], at = slice(at, at + width), at + width
        return found

    @property
    def width(self) -> int:
        """Numbers in a line."""
        return sum(self.widths.values()) + _PER_NUMBER * len(self.dense)

    def encoded(self, struct: pa.StructArray, buckets: int) -> Lines:
        """Return the lines (n, width) of the features of n examples; values are hashed to numbers below `buckets`."""
        lines = np.full((len(struct), self.width), _UNKNOWN, np.int32)
        columns = self.columns
        for name in self.widths:
            found = buckets_of(name, struct.field(name), buckets)
            start = columns[name].start
            lines[:, start : start + found.shape[1]] = found
        for name in self.dense:
            numbers = struct.field(name).to_numpy(zero_copy_only=False).astype(np.float64)
            lines[:, columns[name]] = numbers[:, None].view(np.int32)
        return lines


NO_FEATURES: Final = Layout({}, ())


class UserLines(NamedTuple):
    """Lines (n, width) and what their columns are."""

    layout: Layout
    lines: Lines

    @classmethod
    def nothing(cls, count: int) -> Self:
        """Return lines of so many users of whom nothing is known."""
        return cls(NO_FEATURES, np.empty((count, 0), np.int32))

    @classmethod
    def joined(cls, parts: Sequence["UserLines"]) -> Self:
        """Return all lines, one part after another, with the columns of all."""
        layout = Layout.joined([part.layout for part in parts])
        lines = np.full((sum(len(part.lines) for part in parts), layout.width), _UNKNOWN, np.int32)
        columns, at = layout.columns, 0
        for part in parts:
            for name, where in part.layout.columns.items():
                start = columns[name].start
                here = slice(at, at + len(part.lines)), slice(start, start + where.stop - where.start)
                lines[here] = part.lines[:, where]
            at += len(part.lines)
        return cls(layout, lines)

    def take(self, chosen: slice | npt.NDArray[np.int64]) -> Self:
        """Return some of the lines."""
        return self._replace(lines=self.lines[chosen])

    def buckets(self) -> dict[str, npt.NDArray[np.int32]]:
        """Return the buckets of values of each categorical feature, (n, width), -1 for none."""
        columns = self.layout.columns
        return {name: self.lines[:, columns[name]] for name in self.layout.widths}

    def numbers(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return each dense feature, (n,), NaN where it is unknown."""
        columns = self.layout.columns
        return {
            name: np.ascontiguousarray(self.lines[:, columns[name]]).view(np.float64)[:, 0]
            for name in self.layout.dense
        }

    def said(self, weights: FeatureWeights) -> npt.NDArray[np.float32]:
        """Return what the features add to users, (n, d), by the weights of a bundle."""
        return weights.combined(len(self.lines), self.buckets(), self.numbers())
