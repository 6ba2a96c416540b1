import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.negatives.cells import col_count, in_batch, row_count, two_samples
from weir.trainer.losses import pointwise_in_batch
from weir.trainer.negatives.label_matrix import Cells, LabelMatrix, cross, naive

LABELS = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
"""Two rows and columns are popular; the last column has no positive."""

STEPS = 8_000


def matrix(labels: np.ndarray = LABELS) -> LabelMatrix:
    rows, cols = np.nonzero(labels)
    return LabelMatrix(torch.from_numpy(rows), torch.from_numpy(cols), labels.shape)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_frequencies(cells: list[tuple[int, int]], densities: dict[tuple[int, int], float]) -> None:
    """Compare how often cells came up with their densities, which must sum to 1, within five standard deviations."""
    counts = Counter(cells)
    assert set(counts) <= set(densities)
    assert sum(densities.values()) == pytest.approx(1)
    for cell, density in densities.items():
        assert abs(counts[cell] / len(cells) - density) < 5 * (density * (1 - density) / len(cells)) ** 0.5, cell


def at(cells: Cells, a: int, b: int) -> tuple[tuple[int, int], float]:
    return (int(cells.rows[a]), int(cells.cols[b])), float(cells.log_density[a, b].exp())


def test_naive_cells_are_uniform() -> None:
    cells = naive(matrix(), STEPS, seeded())
    assert cells.log_density.exp().tolist() == pytest.approx([1 / 20] * STEPS)
    found = list(zip(cells.rows.tolist(), cells.cols.tolist(), strict=True))
    assert_frequencies(found, dict.fromkeys(itertools.product(range(4), range(5)), 1 / 20))


def test_cross_cells_are_uniform_wherever_they_stand() -> None:
    generator, found = seeded(), []
    for _ in range(STEPS):
        cell, density = at(cross(matrix(), (2, 3), generator), 1, 2)
        assert density == pytest.approx(1 / 20)
        found.append(cell)
    assert_frequencies(found, dict.fromkeys(itertools.product(range(4), range(5)), 1 / 20))


@pytest.mark.parametrize("place", [(0, 0), (2, 2), (0, 1), (2, 0)])
def test_in_batch_cells_follow_their_density(place: tuple[int, int]) -> None:
    generator, found, stated = seeded(), [], {}
    positives = matrix()
    for _ in range(STEPS):
        cell, density = at(in_batch(positives, 3, generator), *place)
        found.append(cell)
        assert stated.setdefault(cell, density) == density
    assert_frequencies(found, stated)
    if place[0] == place[1]:
        assert all(LABELS[cell] for cell in stated)
    else:
        assert any(LABELS[cell] for cell in stated), "positives stand among the negatives: the paper's first issue"
        assert all(cell[1] != 4 for cell in stated)


def test_in_batch_density_is_that_of_all_samples() -> None:
    """Count every ordered choice of two positives."""
    positives = matrix()
    pairs = list(zip(positives.rows.tolist(), positives.cols.tolist(), strict=True))
    ways = Counter((a[0], b[1]) for a, b in itertools.permutations(pairs, 2))
    seen = set()
    for seed in range(300):
        cell, density = at(in_batch(positives, 2, seeded(seed)), 0, 1)
        assert density == pytest.approx(ways[cell] / (8 * 7))
        seen.add(cell)
    assert seen == set(ways)


@pytest.mark.parametrize("place", [(0, 0), (1, 2)])
def test_two_samples_follow_their_density(place: tuple[int, int]) -> None:
    generator, found, stated = seeded(), [], {}
    positives = matrix()
    for _ in range(STEPS):
        own, cells = two_samples(positives, (2, 3), generator)
        assert LABELS[cells.rows, own].all()
        cell, stated[cell] = at(cells, *place)
        found.append(cell)
    assert_frequencies(found, stated)


def test_the_unbiased_loss_of_the_samples_is_the_loss_of_the_matrix() -> None:
    """Equation 5 from in-batch grids and equation 17; the plain in-batch loss has another mean."""
    positives, labels = matrix(LABELS[:, :4]), torch.from_numpy(LABELS[:, :4])
    scores = torch.randn(4, 4, generator=seeded(9), dtype=torch.float64)
    whole = float(torch.where(labels == 1, (1 - scores) ** 2, scores**2).mean() / 2)
    generator, drawn = seeded(), {"unbiased": [], "in_batch": []}
    for _ in range(5_000):
        rows, cols, _ = in_batch(positives, 3, generator)
        for objective, values in drawn.items():
            value = pointwise_in_batch(
                scores[rows[:, None], cols],
                row_count=row_count(positives)[rows],
                col_count=col_count(positives)[cols],
                num_positives=len(positives),
                shape=positives.shape,
                objective=objective,
                link="square",
            )
            values.append(float(value))
    error = {name: (np.mean(values) - whole) / (np.std(values) / 5_000**0.5) for name, values in drawn.items()}
    assert abs(error["unbiased"]) < 5
    assert abs(error["in_batch"]) > 20


@given(shape=st.tuples(st.integers(1, 6), st.integers(1, 6)), share=st.floats(0.1, 1), seed=st.integers(0, 10**6))
def test_labels_and_counts_are_those_of_the_matrix(shape: tuple[int, int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).random(shape) < share
    labels[0, 0] = True
    positives = matrix(labels)
    rows, cols = (torch.arange(size) for size in shape)
    assert positives.labels(rows[:, None], cols).tolist() == labels.tolist()
    assert row_count(positives).tolist() == labels.sum(1).tolist()
    assert col_count(positives).tolist() == labels.sum(0).tolist()


@given(size=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_a_sample_has_every_positive_at_most_once_and_a_seed_repeats_it(size: int, seed: int) -> None:
    first, second = (in_batch(matrix(), size, seeded(seed)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    pairs = set(zip(first.rows.tolist(), first.cols.tolist(), strict=True))
    assert len(pairs) == size
    assert all(LABELS[pair] for pair in pairs)
    assert torch.equal(naive(matrix(), size, seeded(seed)).cols, naive(matrix(), size, seeded(seed)).cols)


def test_refuses() -> None:
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="size must be from 1 to the 8 positives there are, got 9"):
        in_batch(matrix(), 9, seeded())
    with pytest.raises(ValueError, match=r"cols must lie in \[0, 2\), got 3 to 3"):
        LabelMatrix(one, one + 3, (1, 2))
    with pytest.raises(ValueError, match=r"must be \(P,\), P >= 1, got \(0,\), \(0,\)"):
        LabelMatrix(one[:0], one[:0], (1, 2))
    with pytest.raises(ValueError, match="must name every positive once, got 1 repetitions; drop them first"):
        LabelMatrix(one.repeat(2), one.repeat(2), (1, 2))
