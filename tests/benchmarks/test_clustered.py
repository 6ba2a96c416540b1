"""The weights of a batch of whole histories, by enumeration of every batch of a tiny catalogue."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from benchmarks.clustered import Rows, log_share, measures, with_own
from weir.trainer.losses import exclude_positive

HISTORIES = [[0, 1, 2], [0, 3, 4], [1, 3, 5], [0, 5, 6], [2, 4, 6], [0, 1, 6]]
ITEMS = 7
OWN = 0
"""The history of the row that looks at the batch; its positive is the history's first item."""
LOGITS = torch.tensor([0.3, -0.5, 1.0, 2.0, 0.1, -1.0, 0.7], dtype=torch.float64)
COUNTS = torch.bincount(torch.tensor(HISTORIES).flatten(), minlength=ITEMS).double()
ABSENT = torch.isin(torch.arange(ITEMS), torch.tensor(HISTORIES[OWN]))
OTHERS = 3
"""Other histories in a batch."""


def batches() -> list[Tensor]:
    """List the columns that the other histories bring, for every batch with the row's own."""
    others = [history for number, history in enumerate(HISTORIES) if number != OWN]
    return [torch.tensor(chosen).flatten() for chosen in combinations(others, OTHERS)]


def total(weights: Tensor) -> float:
    """Return the mean over all batches of the weighted sum of e^f over the columns that are not the row's own."""
    sums = [(LOGITS.exp() * weights)[one[~ABSENT[one]]].sum() for one in batches()]
    return float(torch.stack(sums).mean())


def test_the_expected_count_estimates_the_sum_over_the_catalogue_without_bias() -> None:
    expected = COUNTS * OTHERS / (len(HISTORIES) - 1)
    others = float(LOGITS[~ABSENT].exp().sum())
    assert total(1 / expected) == pytest.approx(others, rel=1e-12)


@pytest.mark.parametrize("item", HISTORIES[OWN][1:])
def test_a_draw_from_q_counts_an_own_item_too_much(item: int) -> None:
    """It is there for certain: alone with its user, it weighs the histories of the log over those of the batch."""
    columns, q = (OTHERS + 1) * 3, COUNTS[item] / COUNTS.sum()
    mean = sum(1 + int((one == item).sum()) for one in batches()) / len(batches())
    among = len(HISTORIES), OTHERS + 1
    expected = among[0] / among[1] * (1 + (COUNTS[item] - 1) * (among[1] - 1) / (among[0] - 1)) / COUNTS[item]
    assert mean / float(columns * q) == pytest.approx(float(expected), rel=1e-12)
    assert expected > 1


def test_leaving_out_all_that_is_masked_is_exact_where_the_columns_are_in_proportion() -> None:
    """Every other history once: each item is there as often as the log has it. Only the positive left out: 1 - Q(F)."""
    log_q = (COUNTS / COUNTS.sum()).log()
    columns = torch.tensor(HISTORIES).flatten()
    kept, wanted = columns[~ABSENT[columns]], float(LOGITS[~ABSENT].exp().sum())
    means = [
        float((LOGITS[kept] - exclude_positive(log_q[kept], share)[0]).exp().mean())
        for share in (log_share(ABSENT[None], log_q), log_q[:1])
    ]
    masked, positive_only = (1 - float(log_q[left].exp().sum()) for left in (ABSENT, torch.arange(ITEMS) == 0))
    assert means[0] == pytest.approx(wanted, rel=1e-12)
    assert means[1] == pytest.approx(wanted * positive_only / masked, rel=1e-12)


def test_own_items_enter_the_mean_with_weight_one() -> None:
    own = ABSENT & (torch.arange(ITEMS) != 0)
    rows = Rows(LOGITS[None], torch.tensor([0]), torch.tensor([0]), own[None])
    columns = batches()[0]
    keep = ~ABSENT[columns][None]
    density = exclude_positive((COUNTS / COUNTS.sum()).log()[columns], log_share(ABSENT[None], COUNTS.log() - 18.0))
    neg, kept, joined = with_own(rows, LOGITS[columns][None], keep, density)
    terms = (neg - joined).exp()[kept]
    drawn = (LOGITS[columns][None] - density).exp()[keep]
    assert float(terms.mean()) == pytest.approx(float(drawn.mean() + LOGITS[own].exp().sum()), rel=1e-12)


def test_noise_adds_nothing_to_bias() -> None:
    draw = torch.Generator().manual_seed(0)
    wanted = torch.ones(4000, 50, dtype=torch.float64)
    noise = torch.randn(4000, 50, generator=draw, dtype=torch.float64)
    assert measures(wanted + noise, wanted)[0] < 0.01
    assert measures(1.5 * wanted + noise, wanted)[0] == pytest.approx(0.5, abs=0.01)
