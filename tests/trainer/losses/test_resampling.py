from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestWeights:
    @settings(max_examples=30, deadline=None)
    @given(rows=st.integers(1, 4), columns=st.integers(1, 7), seed=st.integers(0, 10**6))
    def test_equal_brute_force(self, draw: Draw, *, rows: int, columns: int, seed: int) -> None:
        scores = draw(seed, rows, columns)
        pop = np.random.default_rng(seed).uniform(1, 50, columns)
        value = losses.resampling_log_weights(scores, torch.from_numpy(pop).log()).exp().numpy()
        for row in range(rows):
            raw = [np.exp(scores[row, i].item()) / pop[i] for i in range(columns)]
            np.testing.assert_allclose(value[row], np.array(raw) / sum(raw), rtol=1e-12)

    def test_a_constant_changes_nothing(self, draw: Draw) -> None:
        scores, log_pop = draw(0, 3, 5), draw(1, 5)
        value = losses.resampling_log_weights(scores, log_pop)
        torch.testing.assert_close(losses.resampling_log_weights(scores, log_pop + 7.0), value)

    def test_general_duties(
        self, draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]
    ) -> None:
        log_pop = draw(1, 5)
        assert_dtypes(lambda scores: losses.resampling_log_weights(scores, log_pop), draw(0, 3, 5))
        assert_survives_extremes(lambda scores: losses.resampling_log_weights(scores, log_pop), (3, 5))

    @pytest.mark.parametrize(
        ("scores", "log_pop", "message"),
        [
            (torch.zeros(3), torch.zeros(3), r"scores must have shape \(B, C\), got \(3,\)"),
            (torch.zeros(2, 3), torch.zeros(2), r"log_pop must have shape \(C=3\), got \(2,\)"),
            (torch.zeros(2, 0), torch.zeros(0), "scores must have at least one element in dimension 1"),
            (torch.zeros(2, 1), torch.tensor([torch.nan]), "log_pop must hold log-probabilities, got 1 NaN"),
            (torch.zeros(2, 1), torch.tensor([-torch.inf]), "log_pop must be finite"),
        ],
    )
    def test_refuses(self, scores: Tensor, log_pop: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            losses.resampling_log_weights(scores, log_pop)
        with pytest.raises(ValueError, match=message):
            losses.resample(scores, log_pop, 2, seeded())


class TestResample:
    def test_frequencies_follow_the_weights(self, draw: Draw) -> None:
        scores, log_pop = draw(0, 3, 4, scale=1.0), draw(1, 4, scale=1.0)
        draws = 40_000
        index = losses.resample(scores, log_pop, draws, seeded())
        assert index.shape == (3, draws)
        assert index.dtype == torch.int64
        share = torch.stack([(index == item).double().mean(1) for item in range(4)], 1)
        expected = losses.resampling_log_weights(scores, log_pop).exp()
        # Five standard deviations of a binomial share.
        assert ((share - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt()).all()

    def test_popular_batch_plus_weights_give_the_softmax(self) -> None:
        """Theorem 3.1: drawing from a batch that follows the popularity ends up at the softmax of the catalogue."""
        pop = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
        logits = torch.tensor([0.0, 1.0, 0.5, 2.0], dtype=torch.float64)
        batch = torch.multinomial(pop, 50_000, replacement=True, generator=seeded(1))
        index = losses.resample(logits[batch][None], pop.log()[batch], 50_000, seeded(2))
        share = torch.bincount(batch[index[0]], minlength=4).double() / 50_000
        torch.testing.assert_close(share, logits.softmax(0), rtol=0, atol=0.02)

    def test_is_repeatable_and_detached(self, draw: Draw) -> None:
        scores, log_pop = draw(0, 3, 4).requires_grad_(), draw(1, 4)
        first = losses.resample(scores, log_pop, 9, seeded(5))
        assert torch.equal(first, losses.resample(scores, log_pop, 9, seeded(5)))
        assert losses.resample(scores.detach().bfloat16() * 1e4, log_pop, 9, seeded(5)).shape == (3, 9)

    def test_refuses_no_draws(self) -> None:
        with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
            losses.resample(torch.zeros(1, 2), torch.zeros(2), 0, seeded())


class TestResampledSoftmax:
    @settings(max_examples=30, deadline=None)
    @given(
        rows=st.integers(1, 4),
        columns=st.integers(1, 5),
        draws=st.integers(1, 6),
        seed=st.integers(0, 10**6),
        include_positive=st.booleans(),
    )
    def test_equals_the_formula(
        self, draw: Draw, *, rows: int, columns: int, draws: int, seed: int, include_positive: bool
    ) -> None:
        pos, scores = draw(seed, rows), draw(seed + 1, rows, columns)
        index = torch.from_numpy(np.random.default_rng(seed).integers(0, columns, (rows, draws)))
        value = losses.resampled_softmax(pos, scores, index, include_positive=include_positive)
        for row in range(rows):
            total = sum(np.exp(scores[row, j].item()) for j in index[row].tolist())
            total += np.exp(pos[row].item()) * include_positive
            assert value[row] == pytest.approx(-np.log(np.exp(pos[row].item()) / total), rel=1e-11, abs=1e-12)

    def test_drawing_each_once_is_info_nce(self, draw: Draw) -> None:
        pos, scores = draw(0, 3), draw(1, 3, 5)
        index = torch.arange(5).expand(3, 5)
        torch.testing.assert_close(
            losses.resampled_softmax(pos, scores, index), losses.info_nce(pos, scores), rtol=1e-13, atol=0
        )

    @pytest.mark.parametrize("include_positive", [True, False])
    def test_general_duties(
        self,
        draw: Draw,
        assert_dtypes: Callable[..., None],
        assert_survives_extremes: Callable[..., None],
        *,
        include_positive: bool,
    ) -> None:
        index = torch.tensor([[0, 0, 3], [1, 2, 2], [4, 4, 4]])

        def loss(pos: Tensor, scores: Tensor) -> Tensor:
            return losses.resampled_softmax(pos, scores, index, include_positive)

        assert_dtypes(loss, draw(0, 3), draw(1, 3, 5))
        assert_survives_extremes(loss, (3,), (3, 5))
        assert torch.autograd.gradcheck(loss, (draw(0, 3).requires_grad_(), draw(1, 3, 5).requires_grad_()))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"index": torch.tensor([[0], [3]])}, r"index must lie in \[0, 3\), got values from 0 to 3"),
            ({"index": torch.zeros(2, 1)}, "index must hold integer indices, got torch.float32"),
            ({"index": torch.zeros(2, 0).long()}, "index must have at least one element in dimension 1"),
            ({"index": torch.zeros(3, 1).long()}, r"index must have shape \(B=2, S\), got \(3, 1\)"),
            ({"scores": torch.zeros(3, 3)}, r"scores must have shape \(B=2, C\), got \(3, 3\)"),
        ],
    )
    def test_refuses(self, changes: dict[str, Tensor], message: str) -> None:
        arguments = {"pos": torch.zeros(2), "scores": torch.zeros(2, 3), "index": torch.zeros(2, 1).long()}
        with pytest.raises(ValueError, match=message):
            losses.resampled_softmax(**(arguments | changes))
