"""The law of the demo as probabilities: for benchmarks that compare a model with the truth."""

import numpy as np
import pyarrow as pa

from benchmarks.harness import F64, I64
from weir.contracts import ItemKeys, hash_ids
from weir.demo.catalogue import make_catalogue, make_users
from weir.demo.generator import _SAME_GENRE, _SAME_LABEL


class Truth:
    """The law by which each listener of a generated log plays next, given their last label and the day.

    `catalogue` and `users` are those of `weir.demo.generator.generate` with the same seed, items, users and days;
    `keys` (V,) are the keys of the items, label by label.
    """

    def __init__(self, seed: int, users: int, items: int, days: int) -> None:
        rng = np.random.default_rng(seed)
        self.catalogue, self.users = make_catalogue(rng, items, days), make_users(rng, users)
        self.within = np.diff(self.catalogue.weight, axis=2, prepend=0.0)
        self.genre, self.size = self.catalogue.genre, self.catalogue.ids.shape[1]
        root = np.sqrt(self.catalogue.appeal)
        genres = int(self.genre[-1]) + 1
        by_genre = np.stack([root[:, self.genre == genre].sum(1) for genre in range(genres)], 1)
        self.of_genre = root / by_genre[:, self.genre]
        self.taste = np.zeros((users, genres))
        np.put_along_axis(self.taste, self.users.genres, np.diff(self.users.shares, axis=1, prepend=0.0), 1)
        self.keys = ItemKeys(hash_ids(pa.array(self.catalogue.ids.ravel())))

    def preference(self, users: I64, labels: I64, days: I64) -> F64:
        """Return the probabilities (n, V) of all items, for n listeners; a label of -1 is none."""
        of_taste = self.taste[users][:, self.genre] * self.of_genre[days]
        same_genre = (self.genre[labels][:, None] == self.genre) * self.of_genre[days]
        of_label = (1 - _SAME_GENRE) * of_taste + (_SAME_GENRE - _SAME_LABEL) * same_genre
        of_label[np.arange(len(users)), labels] += _SAME_LABEL
        of_label[labels < 0] = of_taste[labels < 0]
        found: F64 = (of_label[:, :, None] * self.within[days]).reshape(len(users), len(self.keys))
        return found
