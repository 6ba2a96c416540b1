"""Items that lie around topics which drift, for benchmarks of what moves."""

from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.harness import I64

__all__ = ["TOPICS", "Floats", "World"]

Floats = npt.NDArray[np.float32]
TOPICS: Final = 2000
SPREAD: Final = 0.6
"""Length of what tells an item from its topic, relative to the topic's vector."""
DRIFT: Final = 0.03
"""The same of what a topic moves in a round."""


class World:
    """Topics (t, d) of length 1 that drift; items and queries lie around them."""

    def __init__(self, dimension: int) -> None:
        self.draw = np.random.default_rng(0)
        self.topics = self.noise(TOPICS, dimension)

    def noise(self, count: int, dimension: int) -> Floats:
        """Return random vectors of length 1."""
        return unit(self.draw.standard_normal((count, dimension), np.float32))

    def drift(self) -> None:
        """Move every topic."""
        self.topics = unit(self.topics + DRIFT * self.noise(*self.topics.shape))

    def around(self, topics: I64) -> Floats:
        """Return a vector around each of the topics (n,)."""
        return unit(self.topics[topics] + SPREAD * self.noise(len(topics), self.topics.shape[1]))


def unit(vectors: Floats) -> Floats:
    """Return vectors at length 1."""
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled
