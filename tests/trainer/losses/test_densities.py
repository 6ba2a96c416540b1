import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]
CORRECTIONS = ("none", "standard", "improved")


class TestMixtureLogQ:
    @settings(max_examples=30, deadline=None)
    @given(seed=st.integers(0, 10**6), num_in_batch=st.integers(0, 500), num_uniform=st.integers(0, 500))
    def test_is_the_mixture_density(self, seed: int, num_in_batch: int, num_uniform: int) -> None:
        total = num_in_batch + num_uniform
        if total == 0:
            return
        in_batch = np.random.default_rng(seed).dirichlet(np.ones(9))
        value = losses.mixture_log_q(
            torch.from_numpy(in_batch).log(), torch.tensor(1 / 9).double().log(), num_in_batch, num_uniform
        )
        expected = (num_in_batch * in_batch + num_uniform / 9) / total
        np.testing.assert_allclose(value.exp().numpy(), expected, rtol=1e-7)
        assert value.exp().sum() == pytest.approx(1.0, abs=1e-6)

    def test_one_source_alone_is_returned_exactly(self) -> None:
        in_batch = torch.tensor([-1.0, -torch.inf, -3.0])
        torch.testing.assert_close(losses.mixture_log_q(in_batch, -2.0, 4, 0), in_batch, rtol=0, atol=0)
        torch.testing.assert_close(losses.mixture_log_q(in_batch, -2.0, 0, 4), torch.full((3,), -2.0), rtol=0, atol=0)

    def test_unseen_items_get_the_uniform_share(self) -> None:
        value = losses.mixture_log_q(torch.tensor([-torch.inf]), torch.tensor([math.log(0.1)]), 3, 1)
        assert float(value) == pytest.approx(math.log(0.025))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((torch.zeros(2), 0.0, 0, 0), "must not both be 0"),
            ((torch.zeros(2), 0.0, -1, 2), "num_in_batch must be a finite number of at least 0, got -1"),
            ((torch.zeros(2), torch.nan, 1, 2), "log_q_uniform must hold log-probabilities, got 1 NaN"),
            ((torch.zeros(2), torch.zeros(3), 1, 2), r"log_q_uniform must have shape \(D0=2\), got \(3,\)"),
            ((torch.zeros(2).long(), 0.0, 1, 2), "log_q_in_batch must hold log-probabilities of a floating dtype"),
        ],
    )
    def test_refuses(self, arguments: tuple[Tensor, float, int, int], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            losses.mixture_log_q(*arguments)
