"""What a step derives from its vectors, against inner products taken one by one."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.losses.step_inputs import dense, random_inputs
from weir.trainer.losses.inputs import Rescored, rescoring_loss

SIZES = {"rows": st.integers(1, 5), "columns": st.integers(2, 6), "own": st.integers(1, 3)}


@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([0.1, 1.0]), **SIZES)
def test_logits_are_inner_products_over_the_temperature(
    seed: int, temperature: float, rows: int, columns: int, own: int
) -> None:
    step = random_inputs(seed, rows=rows, columns=columns, own=own, temperature=temperature)
    wanted = dense(step)
    torch.testing.assert_close(step.pos, wanted.pos)
    torch.testing.assert_close(step.pooled, wanted.columns)
    torch.testing.assert_close(step.unlabelled, torch.cat([wanted.columns, wanted.own], 1))
    torch.testing.assert_close(step.all_positives, torch.cat([wanted.pos[:, None], wanted.extra_positives], 1))
    assert torch.equal(step.keep, wanted.keep)


def test_without_hits_all_columns_are_kept() -> None:
    step = random_inputs(0)
    assert replace(step, hits=step.hits[:0]).keep.all()


def test_own_negatives_extra_positives_and_columns_may_be_missing() -> None:
    step = random_inputs(1)
    bare = replace(step, own=step.own[:, :0], extra_positives=step.extra_positives[:, :0])
    assert torch.equal(bare.unlabelled, step.pooled)
    assert torch.equal(bare.all_positives, step.pos[:, None])
    bare = replace(step, columns=step.columns[:0], hits=step.hits[:0], log_q_columns=step.log_q_columns[:0])
    assert torch.equal(bare.unlabelled, step.unlabelled[:, len(step.columns) :])


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
