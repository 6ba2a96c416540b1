"""Streams and an oracle that the tests of the sketches share."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

int64s = st.integers(-(2**63), 2**63 - 1)
weights = st.one_of(st.floats(0.0, 1e4, allow_nan=False), st.integers(0, 2**20).map(float))


def key_arrays(max_size: int = 100) -> st.SearchStrategy[I64]:
    """Batches with many duplicates, and with keys at the ends of the range."""
    elements = st.one_of(st.integers(-20, 20), int64s)
    return hnp.arrays(np.int64, st.integers(0, max_size), elements=elements)


@st.composite
def weighted_batches(draw: st.DrawFn, max_size: int = 24) -> tuple[I64, F64 | None]:
    keys = draw(key_arrays(max_size))
    if draw(st.booleans()):
        return keys, None
    return keys, draw(hnp.arrays(np.float64, keys.size, elements=weights))


@st.composite
def whole_batches(draw: st.DrawFn, max_size: int = 24) -> tuple[I64, F64 | None]:
    """Batches whose weights are whole numbers, large ones among them."""
    keys = draw(key_arrays(max_size))
    if draw(st.booleans()):
        return keys, None
    return keys, draw(hnp.arrays(np.float64, keys.size, elements=st.integers(0, 2**26).map(float)))


def true_counts(batches: Iterable[tuple[I64, F64 | None]]) -> dict[int, float]:
    """Counts by a plain dictionary, independent of the code under test."""
    counts: defaultdict[int, float] = defaultdict(float)
    for keys, batch_weights in batches:
        each = np.ones(keys.size) if batch_weights is None else batch_weights
        for key, weight in zip(keys.tolist(), each, strict=True):
            counts[key] += float(weight)
    return dict(counts)


def zipf(items: int, events: int, exponent: float, seed: int = 0) -> I64:
    """``events`` keys drawn from a Zipf law over ``items`` structured keys (consecutive numbers, shuffled)."""
    rng = np.random.default_rng(seed)
    law = np.cumsum(np.arange(1, items + 1, dtype=np.float64) ** -exponent)
    ranks = np.searchsorted(law, rng.random(events) * law[-1])
    return rng.permutation(items)[np.minimum(ranks, items - 1)].astype(np.int64)


def weighted_error(log_q: F64, counts: F64) -> float:
    """Occurrence-weighted mean absolute error of log Q against the true counts."""
    share = counts / counts.sum()
    return float((share * np.abs(log_q - np.log(share))).sum())
