"""What a step derives from its vectors, against inner products taken one by one."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.losses.step_inputs import dense, random_inputs

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
