"""What a view derives from its vectors, against inner products taken one by one."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.step.views import dense, random_view

SIZES = {"rows": st.integers(1, 5), "columns": st.integers(2, 6), "own": st.integers(1, 3)}


@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([0.1, 1.0]), **SIZES)
def test_logits_are_inner_products_over_the_temperature(
    seed: int, temperature: float, rows: int, columns: int, own: int
) -> None:
    view = random_view(seed, rows=rows, columns=columns, own=own, temperature=temperature)
    wanted = dense(view)
    torch.testing.assert_close(view.pos, wanted.pos)
    torch.testing.assert_close(view.pooled, wanted.columns)
    torch.testing.assert_close(view.unlabelled, torch.cat([wanted.columns, wanted.own], 1))
    torch.testing.assert_close(view.all_positives, torch.cat([wanted.pos[:, None], wanted.companions], 1))
    assert torch.equal(view.keep, wanted.keep)


def test_without_hits_all_columns_are_kept() -> None:
    view = random_view(0)
    assert replace(view, hits=view.hits[:0]).keep.all()


def test_own_negatives_companions_and_columns_may_be_missing() -> None:
    view = random_view(1)
    bare = replace(view, own=view.own[:, :0], companions=view.companions[:, :0])
    assert torch.equal(bare.unlabelled, view.pooled)
    assert torch.equal(bare.all_positives, view.pos[:, None])
    bare = replace(view, columns=view.columns[:0], hits=view.hits[:0], log_q_columns=view.log_q_columns[:0])
    assert torch.equal(bare.unlabelled, view.unlabelled[:, len(view.columns) :])
