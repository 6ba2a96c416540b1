"""User features in the trainer state: names, moments, and the module that adds features to user vectors."""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from weir.contracts import FeatureNames
from weir.contracts.feature_weights import FeatureWeights, Moments
from weir.contracts.features import MAX_DENSE
from weir.contracts.user_features import UserFeatures
from weir.trainer.towers.features import FeatureInputs, FeatureVectors, feature_inputs
from weir.trainer.users.lines import UserLines

__all__ = ["FeaturedUsers"]

logger = logging.getLogger(__name__)

_NAMES: Final = "names"
_MOMENTS: Final = "moments"
_PLACE: Final = "place"


class FeaturedUsers:
    """Adds vectors of user features to the user tower's output; replicated on every rank.

    Parameters
    ----------
    tower
        Module of the feature vectors; device and type are those of the embeddings.
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

    def take_in(self, found: UserFeatures) -> None:
        """Register the features of a window, before any step on it.

        A feature that was of the other kind before is skipped, with a warning; its earlier values stay.

        Raises
        ------
        ValueError
            If the windows have named more than `MAX_DENSE` dense features.
        """
        names = found.names.agreeing(self.names)
        for name in sorted({*found.names.all} - {*names.all}):
            logger.warning("user feature %s was of another kind before: it is left out; give it another name", name)
        self._categorical |= dict.fromkeys(names.categorical)
        for name in names.dense:
            self._moments.setdefault(name, Moments()).merge(found.moments[name])
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
