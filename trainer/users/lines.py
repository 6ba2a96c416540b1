"""User features of examples, encoded as rows of integers for files and the exchange between ranks."""

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
"""Bucket for no value; in a number, all bits set are a NaN."""

_PER_NUMBER: Final = 2
"""Integers per number: it has 64 bits."""


class Layout(NamedTuple):
    """Columns of encoded features: the buckets of each categorical feature, then the bits of each number."""

    widths: dict[str, int]
    dense: tuple[str, ...]

    @classmethod
    def of(cls, found: UserFeatures, buckets: int) -> Self:
        """Return the layout for a window; without `buckets` it is empty."""
        return cls(dict(found.categorical), tuple(found.dense)) if buckets else cls({}, ())

    @classmethod
    def joined(cls, parts: Sequence["Layout"]) -> Self:
        """Return a layout with room for all parts."""
        widths: dict[str, int] = {}
        for name, width in (pair for part in parts for pair in part.widths.items()):
            widths[name] = max(widths.get(name, 0), width)
        return cls(widths, tuple(dict.fromkeys(name for part in parts for name in part.dense)))

    @property
    def columns(self) -> dict[str, slice]:
        """Columns of each feature."""
        found: dict[str, slice] = {}
        at = 0
        for name, width in (*self.widths.items(), *((name, _PER_NUMBER) for name in self.dense)):
            found[name], at = slice(at, at + width), at + width
        return found

    @property
    def width(self) -> int:
        """Integers per line."""
        return sum(self.widths.values()) + _PER_NUMBER * len(self.dense)

    def encoded(self, struct: pa.StructArray, buckets: int) -> Lines:
        """Return the encoded features (n, width) of n examples; values are hashed to `buckets` buckets."""
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
    """Encoded features (n, width) and their layout."""

    layout: Layout
    lines: Lines

    @classmethod
    def nothing(cls, count: int) -> Self:
        """Return lines without features for `count` users."""
        return cls(NO_FEATURES, np.empty((count, 0), np.int32))

    @classmethod
    def joined(cls, parts: Sequence["UserLines"]) -> Self:
        """Concatenate lines; the layout has the features of all parts."""
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
        """Return a selection of the lines."""
        return self._replace(lines=self.lines[chosen])

    def buckets(self) -> dict[str, npt.NDArray[np.int32]]:
        """Return the value buckets of each categorical feature, (n, width), -1 for none."""
        columns = self.layout.columns
        return {name: self.lines[:, columns[name]] for name in self.layout.widths}

    def numbers(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return each dense feature, (n,), NaN if unknown."""
        columns = self.layout.columns
        return {
            name: np.ascontiguousarray(self.lines[:, columns[name]]).view(np.float64)[:, 0]
            for name in self.layout.dense
        }

    def said(self, weights: FeatureWeights) -> npt.NDArray[np.float32]:
        """Return the feature vectors of the users, (n, d), by the weights of a bundle."""
        return weights.combined(len(self.lines), self.buckets(), self.numbers())
