"""The demo's catalogue and users: genres, labels and items with drifting popularity, users with interests.

Item ids look like ``jazz-blue-note-042``: genre, label, number; user ids like ``anna-17``.
"""

import json
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Catalogue", "Users", "make_catalogue", "make_users"]

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

_GENRES: Final = (
    *("ambient", "baroque", "blues", "chanson", "country", "disco", "dub", "flamenco", "folk", "funk"),
    *("gospel", "house", "jazz", "klezmer", "metal", "opera", "punk", "reggae", "soul", "techno"),
)
_LABELS: Final = (
    *("blue-note", "red-door", "paper-moon", "north-star", "old-mill", "glass-bead", "salt-flat", "tin-roof"),
    *("wild-rose", "iron-gate"),
)
_NAMES: Final = (
    *("anna", "bela", "carla", "dmitri", "elif", "farid", "greta", "hiro", "ines", "jonas", "kofi", "lucia"),
    *("marek", "nadia", "olga", "pablo", "quinn", "rosa", "samir", "tara", "uma", "viktor", "wanda", "xenia"),
    *("yusuf", "zoe"),
)
_INTERESTS: Final = 3


@dataclass(frozen=True)
class Catalogue:
    """Items by label: arrays of shape (labels, items of a label).

    `weight` is the cumulative share of each item within its label by day: (days, labels, items of a label).
    `appeal` is the summed popularity of each label by day: (days, labels).
    """

    ids: npt.NDArray[np.str_]
    genre: Int
    weight: Float
    appeal: Float

    def lines(self) -> bytes:
        """Return the server's catalogue as JSON Lines: every item, tagged with its genre and its label."""
        width = self.labels_per_genre
        tags = [[_GENRES[label // width], _LABELS[label % width]] for label in range(len(self.genre))]
        rows = ({"item_id": str(item), "tags": tags[label]} for label, ids in enumerate(self.ids) for item in ids)
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    @property
    def labels_per_genre(self) -> int:
        """The number of labels of each genre; they are adjacent."""
        return int(len(self.genre) // (self.genre[-1] + 1))


@dataclass(frozen=True)
class Users:
    """Users: ids (u,), genres of interest (u, 3), their cumulative shares (u, 3), share of all events (u,)."""

    ids: npt.NDArray[np.str_]
    genres: Int
    shares: Float
    activity: Float


def make_catalogue(rng: np.random.Generator, items: int, days: int) -> Catalogue:
    """Draw a catalogue: Zipf popularity, a random walk by day, and a quarter of the items published over time.

    A new item starts at four times its later popularity and settles within some days.
    """
    genres, per_genre = len(_GENRES), max(1, min(len(_LABELS), items // (20 * len(_GENRES))))
    labels = genres * per_genre
    size = max(1, items // labels)
    base = -0.9 * np.log(1 + rng.permutation(labels * size).reshape(labels, size))
    drift = np.cumsum(rng.normal(0, 0.15, (days, labels, size)), axis=0)
    published = np.where(rng.random((labels, size)) < 0.25, rng.uniform(1, days, (labels, size)), -days)
    # One item of every label exists from the start, so that no label is ever empty.
    published[:, 0] = -days
    age = np.arange(days)[:, None, None] + 1 - published
    popularity = np.exp(base + drift) * (age > 0) * (1 + 3 * np.exp(-np.maximum(age, 0) / 2))
    appeal = popularity.sum(axis=2)
    weight = np.cumsum(popularity / appeal[:, :, None], axis=2)
    names = [f"{_GENRES[label // per_genre]}-{_LABELS[label % per_genre]}" for label in range(labels)]
    ids = np.array([[f"{name}-{number:03d}" for number in range(size)] for name in names])
    return Catalogue(ids, np.repeat(np.arange(genres), per_genre), weight, appeal)


def make_users(rng: np.random.Generator, users: int) -> Users:
    """Draw users: three genres each, the first preferred, and a widely varying activity."""
    genres = np.argsort(rng.random((users, len(_GENRES))), axis=1)[:, :_INTERESTS]
    shares = np.cumsum(np.tile([0.6, 0.25, 0.15], (users, 1)), axis=1)
    activity = rng.lognormal(0, 0.8, users)
    ids = np.array([f"{_NAMES[n % len(_NAMES)]}-{n // len(_NAMES)}" for n in range(users)])
    return Users(ids, genres, shares, activity / activity.sum())
