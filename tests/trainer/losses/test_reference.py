""""""

import math
import re
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


def random_log_q(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.log(np.random.default_rng(seed).uniform(1e-4, 0.3, shape)))


def by_formula(
    pos: np.ndarray, neg: np.ndarray, log_q_pos: np.ndarray, log_q_neg: np.ndarray, *, keep: np.ndarray, correction: str
) -> list[float]:
    """The paper's formulas, row by row, in the probability domain."""
    rows = []
    for row in range(len(pos)):
        kept = keep[row]
        f, q = neg[row][kept], np.exp(np.broadcast_to(log_q_neg, neg.shape)[row][kept])
        positive = np.exp(pos[row])
        if not kept.any():
            rows.append(0.0)
        elif correction == "none":
            rows.append(-np.log(positive / (positive + np.exp(f).sum())))
        elif correction == "standard":
            positive = positive / np.exp(log_q_pos[row])
            rows.append(-np.log(positive / (positive + (np.exp(f) / q).sum())))
        else:
            total = (np.exp(f) / q).sum()
            weight = 1 - positive / (positive + total / kept.sum())
            rows.append(-weight * np.log(positive / total))
    return rows


@pytest.mark.parametrize("correction", CORRECTIONS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(0, 6),
    seed=st.integers(0, 10**6),
    density=st.sampled_from([0.0, 0.4, 1.0]),
    shared=st.booleans(),
)
def test_equals_the_formula(
    draw: Draw, *, correction: str, rows: int, columns: int, seed: int, density: float, shared: bool
) -> None:
    pos, neg = draw(seed, rows), draw(seed + 1, rows, columns)
    log_q_pos = random_log_q(seed + 2, rows)
    log_q_neg = random_log_q(seed + 3, columns) if shared else random_log_q(seed + 3, rows, columns)
    keep = torch.from_numpy(np.random.default_rng(seed).uniform(size=(rows, columns)) < density)
    value = losses.sampled_softmax(pos, neg, log_q_pos=log_q_pos, log_q_neg=log_q_neg, keep=keep, correction=correction)
    expected = by_formula(
        pos.numpy(), neg.numpy(), log_q_pos.numpy(), log_q_neg.numpy(), keep=keep.numpy(), correction=correction
    )
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12, atol=1e-12)
    if correction == "standard":
        assert (value >= 0).all()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_mask_means_absence(draw: Draw, assert_ignores_masked: Callable[..., None], correction: str) -> None:
    log_q_pos = random_log_q(1, 4)
    keep = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)

    def loss(pos: Tensor, neg: Tensor, mask: Tensor) -> Tensor:
        # A constant density: the single-row calls of the check see the same values, wherever a column moves to.
        log_q_neg = torch.full((neg.shape[1],), -2.0, dtype=neg.dtype)
        return losses.sampled_softmax(
            pos, neg, log_q_pos=log_q_pos[:1].expand_as(pos), log_q_neg=log_q_neg, keep=mask, correction=correction
        )

    assert_ignores_masked(loss, draw(0, 4), draw(1, 4, 3), keep)
    assert_ignores_masked(loss, draw(0, 4), draw(1, 4, 3), torch.zeros_like(keep))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_survives_extreme_logits(assert_survives_extremes: Callable[..., None], correction: str) -> None:
    log_q_pos, log_q_neg = random_log_q(0, 5).float(), random_log_q(1, 7).float()
    keep = torch.rand(5, 7, generator=torch.Generator().manual_seed(3)) < 0.5
    keep[0] = False

    def loss(pos: Tensor, neg: Tensor) -> Tensor:
        return losses.sampled_softmax(
            pos, neg, log_q_pos=log_q_pos, log_q_neg=log_q_neg, keep=keep, correction=correction
        )

    assert_survives_extremes(loss, (5,), (5, 7))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_keeps_the_dtype(draw: Draw, assert_dtypes: Callable[..., None], correction: str) -> None:
    log_q = {"log_q_pos": random_log_q(0, 5), "log_q_neg": random_log_q(1, 7)}
    assert_dtypes(
        lambda pos, neg: losses.sampled_softmax(pos, neg, correction=correction, **log_q), draw(2, 5), draw(3, 5, 7)
    )


@pytest.mark.parametrize("correction", ["none", "standard"])
def test_gradient_by_finite_differences(draw: Draw, correction: str) -> None:
    log_q_pos, log_q_neg = random_log_q(0, 3), random_log_q(1, 3, 4)
    keep = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    assert torch.autograd.gradcheck(
        lambda pos, neg: losses.sampled_softmax(
            pos, neg, log_q_pos=log_q_pos, log_q_neg=log_q_neg, keep=keep, correction=correction
        ),
        (draw(1, 3).requires_grad_(), draw(2, 3, 4).requires_grad_()),
    )


def test_improved_gradient_is_weight_times_difference(draw: Draw) -> None:
    """The weight is a constant of the gradient, so finite differences of w * (lse - pos) with w frozen must agree."""
    pos, neg, log_q = draw(1, 3).requires_grad_(), draw(2, 3, 4).requires_grad_(), random_log_q(3, 4)
    logits = neg.detach() - log_q
    weight = 1 - pos.detach().exp() / (pos.detach().exp() + logits.exp().mean(1))
    gradients = torch.autograd.grad(losses.sampled_softmax(pos, neg, log_q_neg=log_q).sum(), (pos, neg))
    torch.testing.assert_close(gradients[0], -weight, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients[1], weight[:, None] * logits.softmax(1), rtol=1e-12, atol=0)


def test_weight_keeps_relative_precision_when_the_positive_wins() -> None:
    """1 - P computed as a difference would be 0 in float32 from a margin of 17 on."""
    pos, neg = torch.tensor([30.0], requires_grad=True), torch.zeros(1, 4)
    losses.sampled_softmax(pos, neg, log_q_neg=torch.zeros(4)).sum().backward()
    assert pos.grad is not None
    np.testing.assert_allclose(-pos.grad.numpy(), [math.exp(-30) / (1 + math.exp(-30))], rtol=1e-5)


def test_improved_equals_full_softmax_when_all_negatives_are_given(draw: Draw) -> None:
    """Every item d != p drawn exactly n Q'(d) times: the estimate has no variance, the gradient is the full one."""
    times = torch.tensor([3, 1, 4, 2, 5])
    logits, target = draw(5, 2, 5), torch.tensor([1, 4])
    for row in range(2):
        f = logits[row].clone().requires_grad_()
        others = torch.tensor([d for d in range(5) if d != target[row]])
        drawn = others.repeat_interleave(times[others])
        log_q = (times.double() / times.sum()).log()
        log_q_prime = losses.exclude_positive(log_q[drawn], log_q[target[row]][None])
        sampled = losses.sampled_softmax(f[target[row]][None], f[drawn][None], log_q_neg=log_q_prime)
        full = losses.full_softmax(f[None], target[row][None])
        torch.testing.assert_close(
            torch.autograd.grad(sampled.sum(), f)[0], torch.autograd.grad(full.sum(), f)[0], rtol=1e-12, atol=1e-14
        )


def mean_gradient(correction: str, num_negatives: int, repeats: int) -> tuple[Tensor, Tensor]:
    """Average gradient over draws of a skewed proposal without the positive, and the full softmax's."""
    generator = torch.Generator().manual_seed(num_negatives)
    logits = torch.tensor([2.0, 1.0, -1.0, 0.5, 1.5, 0.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.35, 0.3, 0.15, 0.1, 0.06, 0.04], dtype=torch.float64)
    full = torch.autograd.grad(losses.full_softmax(logits[None], torch.tensor([0])).sum(), logits)[0]
    q_prime = q.clone()
    q_prime[0] = 0.0
    drawn = torch.multinomial(q_prime, repeats * num_negatives, replacement=True, generator=generator)
    drawn = drawn.reshape(repeats, num_negatives)
    log_q_pos = q[0].log().expand(repeats)
    log_q_neg = q.log()[drawn]
    if correction == "improved":
        log_q_neg = losses.exclude_positive(log_q_neg, log_q_pos)
    value = losses.sampled_softmax(
        logits[0].expand(repeats), logits[drawn], log_q_pos=log_q_pos, log_q_neg=log_q_neg, correction=correction
    )
    return torch.autograd.grad(value.mean(), logits)[0], full


def test_improved_gradient_tends_to_the_full_one() -> None:
    errors = []
    for num_negatives in (2, 16, 128, 1024):
        sampled, full = mean_gradient("improved", num_negatives, repeats=400_000 // num_negatives)
        errors.append(float((sampled - full).abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01
    assert errors[0] > 0.02


@pytest.mark.parametrize("correction", ["none", "standard"])
def test_the_other_gradients_do_not(correction: str) -> None:
    sampled, full = mean_gradient(correction, 1024, repeats=400)
    assert float((sampled - full).abs().max()) > 0.1


def test_special_cases_meet(draw: Draw) -> None:
    pos, neg = draw(1, 4), draw(2, 4, 6)
    flat = torch.full((6,), -1.7, dtype=torch.float64)
    none = losses.sampled_softmax(pos, neg, correction="none")
    standard = losses.sampled_softmax(pos, neg, log_q_pos=flat[:4], log_q_neg=flat, correction="standard")
    torch.testing.assert_close(standard, none, rtol=1e-13, atol=0)
    logits = torch.cat([pos[:, None], neg], 1)
    full = losses.full_softmax(logits, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(none, full, rtol=1e-13, atol=0)
    per_row = losses.sampled_softmax(pos, neg, log_q_neg=flat.expand(4, 6))
    torch.testing.assert_close(per_row, losses.sampled_softmax(pos, neg, log_q_neg=flat), rtol=0, atol=0)


def test_masked_density_may_be_infinite(draw: Draw) -> None:
    keep = torch.tensor([[True, False, True]])
    log_q = torch.tensor([-1.0, -torch.inf, -2.0])
    neg = draw(0, 1, 3).requires_grad_()
    value = losses.sampled_softmax(draw(1, 1), neg, log_q_neg=log_q, keep=keep)
    value.sum().backward()
    assert value.isfinite().all()
    assert neg.grad is not None
    assert neg.grad.isfinite().all()


class TestExcludePositive:
    def test_is_the_renormalised_proposal(self) -> None:
        counts = np.array([5.0, 3.0, 1.0, 1.0])
        q = torch.from_numpy(counts / counts.sum()).log()
        value = losses.exclude_positive(q, q[:2])
        for row in range(2):
            expected = counts / (counts.sum() - counts[row])
            np.testing.assert_allclose(value[row].exp().numpy(), expected, rtol=1e-13)
            others = np.arange(4) != row
            assert value[row].exp()[torch.from_numpy(others)].sum() == pytest.approx(1.0, abs=1e-13)

    def test_takes_a_matrix_and_keeps_infinities(self) -> None:
        log_q = torch.tensor([[-1.0, -torch.inf], [-2.0, -3.0]])
        value = losses.exclude_positive(log_q, torch.tensor([-torch.inf, math.log(0.5)]))
        torch.testing.assert_close(value, torch.tensor([[-1.0, -torch.inf], [-2.0 + math.log(2), -3.0 + math.log(2)]]))
        assert losses.exclude_positive(log_q.bfloat16(), torch.tensor([-1.0, -1.0])).dtype == torch.bfloat16

    @pytest.mark.parametrize(
        ("log_q_neg", "log_q_pos", "message"),
        [
            (torch.zeros(3), torch.tensor([-1.0, 0.0]), r"log_q_pos must be below 0 \(Q\(p\) < 1\), got .* 0\.0"),
            (torch.zeros(3), torch.tensor([torch.nan]), "log_q_pos must hold log-probabilities, got 1 NaN"),
            (torch.tensor([torch.nan]), torch.tensor([-1.0]), "log_q_neg must hold log-probabilities, got 1 NaN"),
            (torch.zeros(3, 2), torch.tensor([-1.0]), r"log_q_neg must have shape \(B=1, N\), got \(3, 2\)"),
            (torch.zeros(3), torch.zeros(2, 1), r"log_q_pos must have shape \(B\), got \(2, 1\)"),
        ],
    )
    def test_refuses(self, log_q_neg: Tensor, log_q_pos: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            losses.exclude_positive(log_q_neg, log_q_pos)


class TestFullSoftmax:
    def test_equals_the_formula(self, draw: Draw) -> None:
        logits, target = draw(0, 5, 7), torch.tensor([0, 6, 3, 3, 1])
        expected = -np.log(np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True))[range(5), target]
        np.testing.assert_allclose(losses.full_softmax(logits, target).numpy(), expected, rtol=1e-12)

    def test_general_duties(
        self, draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]
    ) -> None:
        target = torch.tensor([0, 2, 1])
        assert_dtypes(lambda logits: losses.full_softmax(logits, target), draw(0, 3, 4))
        assert_survives_extremes(lambda logits: losses.full_softmax(logits, target), (3, 4))
        logits = draw(0, 3, 4).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: losses.full_softmax(x, target), (logits,))

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (torch.tensor([0, 4]), r"target must lie in \[0, 4\), got values from 0 to 4"),
            (torch.tensor([-1, 0]), r"target must lie in \[0, 4\), got values from -1 to 0"),
            (torch.tensor([0.0, 1.0]), "target must hold integer indices, got torch.float32"),
            (torch.tensor([0]), r"target must have shape \(B=2\), got \(1,\)"),
        ],
    )
    def test_refuses(self, target: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            losses.full_softmax(torch.zeros(2, 4), target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correction": "yes"}, "correction must be one of improved, none, standard, got 'yes'"),
        ({"log_q_neg": None}, "log_q_neg must be given for correction='improved', got None"),
        ({"log_q_neg": None, "correction": "standard"}, "log_q_neg must be given for correction='standard'"),
        ({"log_q_pos": None, "correction": "standard"}, "log_q_pos must be given for correction='standard'"),
        ({"log_q_neg": torch.full((3,), torch.nan)}, "log_q_neg must hold log-probabilities, got 3 NaN"),
        ({"log_q_neg": torch.full((3,), torch.nan), "correction": "none"}, "log_q_neg must hold log-probabilities"),
        ({"log_q_pos": torch.full((2,), torch.nan)}, "log_q_pos must hold log-probabilities, got 2 NaN"),
        ({"log_q_neg": torch.full((3,), -torch.inf)}, "log_q_neg must be finite wherever it is used, got 3 values"),
        ({"log_q_pos": torch.full((2,), -torch.inf), "correction": "standard"}, "log_q_pos must be finite"),
        ({"log_q_neg": torch.zeros(2)}, r"log_q_neg must have shape \(N=3\), got \(2,\)"),
        ({"log_q_neg": torch.zeros(3, 2)}, r"log_q_neg must have shape \(B=2, N=3\), got \(3, 2\)"),
        ({"log_q_pos": torch.zeros(3)}, r"log_q_pos must have shape \(B=2\), got \(3,\)"),
        ({"pos": torch.zeros(2, 1)}, r"pos must have shape \(B\), got \(2, 1\)"),
        ({"neg": torch.zeros(3, 3)}, r"neg must have shape \(B=2, N\), got \(3, 3\)"),
        ({"neg": torch.zeros(2, 3).double()}, "neg must have the dtype of pos, torch.float32, got torch.float64"),
        ({"pos": torch.zeros(2).long()}, "pos must be float32, float64 or bfloat16, got torch.int64"),
        ({"keep": torch.ones(2, 3)}, "keep must be boolean"),
        ({"keep": torch.ones(3, dtype=torch.bool)}, r"keep must have shape \(B=2, N=3\), got \(3,\)"),
    ],
)
def test_refuses(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "pos": torch.zeros(2),
        "neg": torch.zeros(2, 3),
        "log_q_pos": torch.full((2,), -1.0),
        "log_q_neg": torch.full((3,), -1.0),
    }
    with pytest.raises(ValueError, match=message):
        losses.sampled_softmax(**(arguments | changes))  # type: ignore[arg-type]


def test_refuses_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=re.escape("neg must be a torch tensor, got list")):
        losses.sampled_softmax(torch.zeros(2), [[0.0]], correction="none")  # type: ignore[arg-type]


def test_info_nce_is_uncorrected_sampled_softmax(draw: Draw) -> None:
    pos, neg = draw(0, 3), draw(1, 3, 5)
    keep = torch.tensor([[1, 1, 0, 1, 0], [0] * 5, [1] * 5], dtype=torch.bool)
    expected = losses.sampled_softmax(pos, neg, keep=keep, correction="none")
    torch.testing.assert_close(losses.info_nce(pos, neg, keep), expected, rtol=0, atol=0)
    positive, others = np.exp(pos[2].numpy()), np.exp(neg[2].numpy())
    by_hand = -np.log(positive / (positive + others.sum()))
    assert losses.info_nce(pos, neg, keep)[2] == pytest.approx(by_hand, rel=1e-12)


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
