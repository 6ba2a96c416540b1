"""User features: their encoded form with each example, and the part of the model that adds them to user vectors."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from weir.contracts import FeatureNames
from weir.contracts.interactions.features import MAX_DENSE, FeatureWeights, Moments, UserFeatures, buckets_of
from weir.trainer.towers.features import FeatureInputs, FeatureVectors, feature_inputs

__all__ = ["NO_FEATURES", "FeaturedUsers", "Layout", "UserLines"]

logger = logging.getLogger(__name__)


Lines = npt.NDArray[np.int32]

_UNKNOWN: Final = -1
"""Bucket that stands for no value; as the two halves of a number, its bits are a NaN."""

_PER_NUMBER: Final = 2
"""32-bit integers per encoded number, which has 64 bits."""


_NAMES: Final = "names"
_MOMENTS: Final = "moments"
_PLACE: Final = "place"


class Layout(NamedTuple):
    """Columns of encoded features: the buckets of each categorical feature (`widths`), then the bits of each number."""

    widths: dict[str, int]
    dense: tuple[str, ...]

    @classmethod
    def of(cls, features: UserFeatures, buckets: int) -> Self:
        """Return the layout for the features of a window; empty if `buckets` is 0."""
        return cls(dict(features.categorical), tuple(features.dense)) if buckets else cls({}, ())

    @classmethod
    def joined(cls, parts: Sequence["Layout"]) -> Self:
        """Return a layout with the features of all parts."""
        widths: dict[str, int] = {}
        for name, width in (pair for part in parts for pair in part.widths.items()):
            widths[name] = max(widths.get(name, 0), width)
        return cls(widths, tuple(dict.fromkeys(name for part in parts for name in part.dense)))

    @property
    def columns(self) -> dict[str, slice]:
        """Columns of each feature."""
        columns: dict[str, slice] = {}
        at = 0
        for name, width in (*self.widths.items(), *((name, _PER_NUMBER) for name in self.dense)):
            columns[name], at = slice(at, at + width), at + width
        return columns

    @property
    def width(self) -> int:
        """Integers per line, that is, per user."""
        return sum(self.widths.values()) + _PER_NUMBER * len(self.dense)

    def encoded(self, struct: pa.StructArray, buckets: int) -> Lines:
        """Return the encoded features (n, width) of n examples; values are hashed to `buckets` buckets."""
        lines = np.full((len(struct), self.width), _UNKNOWN, np.int32)
        columns = self.columns
        for name in self.widths:
            hashed = buckets_of(name, struct.field(name), buckets)
            start = columns[name].start
            lines[:, start : start + hashed.shape[1]] = hashed
        for name in self.dense:
            numbers = struct.field(name).to_numpy(zero_copy_only=False).astype(np.float64)
            lines[:, columns[name]] = numbers[:, None].view(np.int32)
        return lines


NO_FEATURES: Final = Layout({}, ())


class UserLines(NamedTuple):
    """Encoded features of n users, `lines` (n, width), and their layout."""

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


class FeaturedUsers:
    """Adds vectors of user features to the user tower's output; replicated on every rank.

    Parameters
    ----------
    tower
        Module of the feature vectors, on the device and of the type of the embeddings.
    place
        Number of AdamW parameters before the first of this part.
    """

    def __init__(self, tower: FeatureVectors, place: int) -> None:
        self.tower, self.place = tower, place
        self._categorical: dict[str, None] = {}
        self._moments: dict[str, Moments] = {}

    @classmethod
    def fresh(cls, buckets: int, like: Tensor, place: int) -> "FeaturedUsers":
        """Return an untrained part without features; vectors have the width of `like` (n, d)."""
        return cls(FeatureVectors(like.shape[1], buckets).to(like), place)

    @property
    def names(self) -> FeatureNames:
        """The features seen so far, in order of their first appearance."""
        return FeatureNames(categorical=tuple(self._categorical), dense=tuple(self._moments))

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that AdamW trains."""
        return list(self.tower.parameters())

    def take_in(self, window: UserFeatures) -> None:
        """Register the features of a window, before any step on the window.

        A feature that was of the other kind before is skipped, with a warning; its earlier values stay.

        Raises
        ------
        ValueError
            If the windows have named more than `MAX_DENSE` dense features.
        """
        names = window.names.agreeing(self.names)
        for name in sorted({*window.names.all} - {*names.all}):
            logger.warning("user feature %s was of another kind before: it is left out; give it another name", name)
        self._categorical |= dict.fromkeys(names.categorical)
        for name in names.dense:
            self._moments.setdefault(name, Moments()).merge(window.moments[name])
        if len(self._moments) > MAX_DENSE:
            raise ValueError(
                f"the windows name {len(self._moments)} dense user features by now, at most {MAX_DENSE} have room"
            )

    def inputs(self, of: UserLines) -> FeatureInputs:
        """Return the tower's inputs for n users, on the CPU; features that are not registered are ignored."""
        numbers, dense = of.numbers(), np.zeros((len(of.lines), len(self._moments)))
        for place, (name, moments) in enumerate(self._moments.items()):
            if name in numbers:
                dense[:, place] = moments.standardised(numbers[name])
        parts = [torch.from_numpy(part) for name, part in of.buckets().items() if name in self._categorical]
        return feature_inputs(parts, torch.from_numpy(dense), self.tower.dense.weight.dtype)

    def compose(self, users: Tensor, features: FeatureInputs) -> Tensor:
        """Return user vectors (n, d) plus the vectors of their features; differentiable."""
        composed: Tensor = self.tower(users, features)
        return composed

    @property
    def weights(self) -> FeatureWeights:
        """Weights of user features, for the bundle."""
        values, dense = (one.weight.detach().float().cpu().numpy() for one in (self.tower.values, self.tower.dense))
        return FeatureWeights(self.names, values, dense, tuple(self._moments.values()))

    def state_dict(self) -> dict[str, Tensor | npt.NDArray[Any]]:
        """Return the state as arrays, for the checkpoint."""
        names = json.dumps([list(self._categorical), list(self._moments)]).encode()
        moments = np.array([one.stored for one in self._moments.values()], np.float64).reshape(-1, 3)
        own = {_NAMES: np.frombuffer(names, np.uint8).copy(), _MOMENTS: moments, _PLACE: np.array(self.place)}
        return {**own, **{f"tower.{name}": value for name, value in self.tower.state_dict().items()}}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`."""
        categorical, dense = json.loads(np.asarray(state[_NAMES]).tobytes())
        self._categorical = dict.fromkeys(categorical)
        rows = np.asarray(state[_MOMENTS]).tolist()
        self._moments = {name: Moments(*row) for name, row in zip(dense, rows, strict=True)}
        tower = {name.removeprefix("tower."): value for name, value in state.items() if name.startswith("tower.")}
        self.tower.load_state_dict(tower)

    @staticmethod
    def place_in(state: Mapping[str, Tensor]) -> int:
        """Return the `place` in a saved state."""
        return int(state[_PLACE])
