import math

import pytest
import torch

from weir.trainer.losses.rescoring import Rescored, rescoring_loss


def scores(rows: int = 4, columns: int = 6) -> Rescored:
    draw = torch.Generator().manual_seed(2)
    log_q = torch.log_softmax(torch.randn(rows + columns, generator=draw), 0).double()
    keep = torch.rand(rows, columns, generator=draw) < 0.7
    keep[0] = False
    return Rescored(
        torch.randn(rows, generator=draw).double().requires_grad_(),
        torch.randn(rows, columns, generator=draw).double().requires_grad_(),
        keep,
        log_q[:rows],
        log_q[rows:],
    )


def by_hand(one: Rescored, row: int, correction: str) -> float:
    """The loss of a row, negative by negative."""
    kept = [column for column in range(one.neg.shape[1]) if one.keep[row, column]]
    if not kept:
        return 0.0
    neg, log_q, pos = one.neg[row].tolist(), one.log_q_neg.tolist(), one.pos[row].item()
    own = float(one.log_q_pos[row])
    if correction == "none":
        return math.log(1 + sum(math.exp(neg[column] - pos) for column in kept))
    total = sum(math.exp(neg[column] - log_q[column]) for column in kept)
    if correction == "standard":
        return math.log(1 + total / math.exp(pos - own))
    total *= 1 - math.exp(own)
    chance = total / len(kept) / (total / len(kept) + math.exp(pos))
    return chance * (math.log(total) - pos)


@pytest.mark.parametrize("correction", ["none", "standard", "improved"])
def test_the_loss_is_the_corrected_softmax_over_the_kept_negatives(correction: str) -> None:
    one = scores()
    found = rescoring_loss(one, correction)
    torch.testing.assert_close(found.tolist(), [by_hand(one, row, correction) for row in range(len(found))])


def test_a_row_pulls_at_its_positive_and_at_its_kept_negatives_only() -> None:
    one = scores()
    rescoring_loss(one, "improved").sum().backward()
    assert one.pos.grad is not None
    assert one.neg.grad is not None
    assert torch.equal(one.neg.grad != 0, one.keep)
    assert torch.equal(one.pos.grad < 0, one.keep.any(1))
