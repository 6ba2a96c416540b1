import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.base.arrays import Layers
from weir.serving.index.popular import Popular


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(0, 3))
def test_the_first_are_those_of_a_whole_sort(seed: int, count: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    layers = Layers.of(np.where(rng.random(count) < 0.1, -np.inf, rng.integers(0, 6, count)))
    whole, popular = layers.base.copy(), Popular.of(layers)
    order = popular.order
    for _ in range(changes):
        rows = np.concatenate([rng.permutation(len(whole))[: len(whole) // 3], len(whole) + np.arange(2)])
        values = np.where(rng.random(len(rows)) < 0.3, -np.inf, rng.integers(0, 6, len(rows)))
        layers = layers.replaced(rows, values, np.empty(0, np.int64))
        whole = np.append(whole, [0.0, 0.0])
        whole[rows] = values
        popular = Popular.of(layers, popular)
    assert popular.order is order
    live = np.flatnonzero(whole > -np.inf)
    ranked = live[np.argsort(-whole[live], kind="stable")]
    for wanted in (0, 1, 4, len(live)):
        assert popular.first(wanted).tolist() == ranked[:wanted].tolist()


def test_another_base_is_sorted_anew() -> None:
    before = Popular.of(Layers.of(np.array([1.0, 2.0])))
    assert Popular.of(Layers.of(np.array([3.0, 2.0])), before).first(2).tolist() == [0, 1]
