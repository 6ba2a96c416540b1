"""Each loss of the table against a direct call on matrices built by hand, value and gradient; the term of exposure."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.losses.step_inputs import LEAVES, Dense, dense, random_inputs
from weir.trainer import losses
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.losses.step_loss import exposure_of, step_loss
from weir.trainer.settings.losses import LOSSES
from weir.trainer.settings.trainer import NegativesConfig, TrainerConfig

Oracle = Callable[[LossInputs, Dense], Tensor]
UNIFORM = {"in_batch": False, "uniform": 8}
OWN = {"in_batch": False, "uniform": 0, "per_row": 1}
BATCH = {"in_batch": True, "uniform": 0}


def configured(kind: str, negatives: dict[str, Any] | None = None, **loss: Any) -> TrainerConfig:
    return TrainerConfig.model_validate({"loss": {"kind": kind, **loss}, "negatives": negatives or {}})


def softmax(step: LossInputs, of: Dense, correction: str) -> Tensor:
    log_q_neg = step.log_q_columns
    if correction == "improved":
        log_q_neg = losses.exclude_positive(log_q_neg, step.log_q_pos)
    return losses.sampled_softmax(
        of.pos, of.columns, log_q_pos=step.log_q_pos, log_q_neg=log_q_neg, keep=of.keep, correction=correction
    )


def unlabelled(of: Dense) -> Tensor:
    return torch.cat([of.columns, of.own], 1)


def positives(of: Dense) -> Tensor:
    return torch.cat([of.pos[:, None], of.extra_positives], 1)


def pairwise(of: Dense) -> Tensor:
    """The mean of -log sigmoid over the row's negatives."""
    return torch.stack([losses.bpr(of.pos, neg) for neg in unlabelled(of).T]).mean(0)


def anchored(step: LossInputs, of: Dense) -> Tensor:
    self_logit = torch.stack([user.dot(user) for user in step.users]) / step.temperature
    return losses.debiased_positive(positives(of), unlabelled(of), tau_plus=0.05, self_logit=self_logit)


def population(step: LossInputs, rows: slice = slice(None), columns: slice = slice(None)) -> dict[str, Any]:
    assert step.population is not None
    known = step.population
    counts = {"row_count": known.row_count[rows], "col_count": known.column_count[columns]}
    return counts | {"num_positives": known.positives, "shape": known.shape}


def grid(step: LossInputs) -> Tensor:
    return torch.stack([torch.stack([user.dot(item) for item in step.positives]) for user in step.users])


def pointwise(step: LossInputs, objective: str, link: str, omega: float) -> Tensor:
    scores = grid(step) / step.temperature
    settings = {"objective": objective, "link": link, "omega": omega}
    return losses.pointwise_in_batch(scores, **settings, **population(step)).expand(len(step.users))


def sogram(step: LossInputs, of: Dense) -> Tensor:
    """The pairs of the first half of the batch, the items of the second."""
    half = len(step.users) // 2
    first, second = slice(half), slice(half, None)
    cross = grid(step)[first, second] / step.temperature
    return losses.sogram(of.pos[first], cross, **population(step, first, second)).expand(len(step.users))


def resampled(step: LossInputs, of: Dense, weight: float) -> Tensor:
    """The batch is drawn from first, then the cache, of the same seed."""
    draw = torch.Generator()
    draw.set_state(step.generator.get_state())
    parts = []
    for scores, log_q in ((of.columns, step.log_q_columns), (of.cached, step.log_q_cached)):
        count = scores.shape[1] // 2 if weight else scores.shape[1]
        parts.append(losses.resampled_softmax(of.pos, scores, losses.resample(scores, log_q, count, draw)))
        if not weight:
            return parts[0]
    return weight * parts[1] + (1 - weight) * parts[0]


CASES: dict[str, tuple[TrainerConfig, Oracle]] = {
    **{
        f"sampled_softmax, {one}": (
            configured("sampled_softmax", {"correction": one}),
            lambda step, of, one=one: softmax(step, of, one),
        )
        for one in ("none", "standard", "improved")
    },
    "info_nce": (configured("info_nce"), lambda _, of: losses.info_nce(of.pos, of.columns, of.keep)),
    "bce": (configured("bce"), lambda _, of: losses.bce(of.pos, of.columns, of.keep)),
    "gbce": (
        configured("gbce", calibration=0.6),
        lambda _, of: losses.gbce(of.pos, of.columns, catalog_size=50, calibration=0.6, keep=of.keep),
    ),
    "debiased_contrastive": (
        configured("debiased_contrastive", UNIFORM, tau_plus=0.05),
        lambda step, of: losses.debiased_contrastive(
            positives(of), unlabelled(of), tau_plus=0.05, temperature=step.temperature
        ),
    ),
    "hard_contrastive": (
        configured("hard_contrastive", UNIFORM, tau_plus=0.05, beta=0.7),
        lambda step, of: losses.hard_contrastive(
            positives(of), unlabelled(of), tau_plus=0.05, beta=0.7, temperature=step.temperature
        ),
    ),
    "debiased_positive": (configured("debiased_positive", UNIFORM, tau_plus=0.05, extra_positives=2), anchored),
    "bpr": (configured("bpr", OWN), lambda _, of: pairwise(of)),
    "dpl": (
        configured("dpl", UNIFORM, tau_plus=0.05, floor=0.02, extra_positives=2),
        lambda _, of: losses.dpl(of.pos, of.extra_positives, unlabelled(of), tau_plus=0.05, floor=0.02),
    ),
    "pointwise, unbiased": (
        configured("pointwise", BATCH),
        lambda step, _: pointwise(step, "unbiased", "logistic", 1.0),
    ),
    "pointwise, omega": (
        configured("pointwise", BATCH, objective="unbiased_omega", link="square", omega=0.3),
        lambda step, _: pointwise(step, "unbiased_omega", "square", 0.3),
    ),
    "sogram": (configured("sogram", BATCH), sogram),
    "xir": (
        configured("resampled_softmax", BATCH, cache=4, cache_share=0.3),
        lambda step, of: resampled(step, of, 0.3),
    ),
}


def value_and_gradients(step: LossInputs, found: Tensor) -> list[Tensor]:
    """Return the losses and the gradients of their weighted sum by every vector of the step."""
    weight = torch.linspace(0.5, 2, len(found), dtype=torch.float64)
    leaves = [leaf for name in LEAVES if (leaf := getattr(step, name)) is not None]
    gradients = torch.autograd.grad((found * weight).sum(), leaves, allow_unused=True, materialize_grads=True)
    return [found.detach(), *gradients]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_is_the_loss_called_directly(name: str, seed: int) -> None:
    config, oracle = CASES[name]
    step = random_inputs(seed)
    wanted = value_and_gradients(step, oracle(step, dense(step)))
    found = value_and_gradients(step, step_loss(step, config).losses)
    assert any(gradient.any() for gradient in wanted[1:])
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_resampling_without_a_cache_draws_as_many_as_there_are_columns(seed: int) -> None:
    step = random_inputs(seed)
    step = replace(step, cached=None, log_q_cached=None)
    full = replace(step, cached=random_inputs(seed).cached)
    wanted = value_and_gradients(step, resampled(step, dense(full), 0.0))
    result = step_loss(step, configured("resampled_softmax", BATCH))
    for mine, other in zip(value_and_gradients(step, result.losses), wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
    assert result.drawn is not None
    assert result.drawn.shape == (len(step.users), len(step.columns))


def test_resampling_names_the_columns_that_it_drew_and_the_cache_after_them() -> None:
    step = random_inputs(3)
    drawn = step_loss(step, CASES["xir"][0]).drawn
    assert drawn is not None
    columns, cached = len(step.columns), len(step.cached)
    assert drawn.shape == (len(step.users), columns // 2 + cached // 2)
    assert int(drawn[:, : columns // 2].max()) < columns
    assert int(drawn[:, columns // 2 :].min()) >= columns
    assert int(drawn.max()) < columns + cached


@pytest.mark.parametrize("seed", range(3))
def test_full_softmax_over_the_catalogue(seed: int) -> None:
    """The columns are all items, and a row leaves its own out, which stands as the positive."""
    step = random_inputs(seed, columns=9)
    target = torch.randint(9, (len(step.users),), generator=torch.Generator().manual_seed(seed))
    own = torch.stack([torch.arange(len(target)), target], 1)
    step = replace(step, positives=step.columns[target], hits=own)
    logits = dense(step).columns
    wanted = losses.full_softmax(logits, target)
    found = step_loss(step, configured("full_softmax")).losses
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    leaves = (step.users, step.columns)
    for mine, other in zip(
        torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["sampled_softmax", "full_softmax", "info_nce", "bce", "gbce"])
def test_what_is_hit_is_no_negative(kind: str) -> None:
    """A column that every row leaves out may lie anywhere; where one row keeps it, that row notices."""
    step = random_inputs(4)
    column = torch.full((len(step.users),), 2)
    everywhere = torch.stack([torch.arange(len(column)), column], 1)
    moved = step.columns.detach().clone()
    moved[2] *= -3
    before, after = (
        step_loss(replace(step, hits=everywhere, columns=columns), configured(kind)).losses
        for columns in (step.columns, moved)
    )
    torch.testing.assert_close(after, before, rtol=1e-12, atol=0)
    before, after = (
        step_loss(replace(step, hits=everywhere[1:], columns=columns), configured(kind)).losses
        for columns in (step.columns, moved)
    )
    assert before[0] != after[0]
    torch.testing.assert_close(after[1:], before[1:], rtol=1e-12, atol=0)


def test_every_kind_is_tested() -> None:
    assert {config.loss.kind for config, _ in CASES.values()} | {"full_softmax"} == set(LOSSES)


@pytest.mark.parametrize("name", CASES)
def test_a_rank_without_rows_has_no_losses_and_no_gradient(name: str) -> None:
    step = random_inputs(5, rows=1)
    empty = replace(
        step,
        **{
            part: getattr(step, part)[:0]
            for part in ("users", "positives", "hits", "log_q_pos", "own", "extra_positives")
        },
    )
    found = step_loss(empty, CASES[name][0]).losses
    assert found.shape == (0,)
    (gradient,) = torch.autograd.grad(found.sum(), step.users)
    assert not gradient.any()


@pytest.mark.parametrize("name", CASES)
def test_a_lone_row_trains_all_but_the_losses_of_whole_batches(name: str) -> None:
    config, oracle = CASES[name]
    step = random_inputs(7, rows=1)
    wanted = torch.zeros(1).double() if config.loss.needs.user_counts else oracle(step, dense(step))
    torch.testing.assert_close(step_loss(step, config).losses, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["gbce", "pointwise", "sogram"])
def test_asks_for_the_population(kind: str) -> None:
    config = configured(kind, {} if kind == "gbce" else BATCH)
    with pytest.raises(ValueError, match="population must be given for this loss, got None"):
        step_loss(replace(random_inputs(6), population=None), config)


KEEP = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.bool)


def shown(step: LossInputs) -> LossInputs:
    """Add three items that each row was shown with, of which some take no part."""
    draw = torch.Generator().manual_seed(9)
    vectors = torch.randn(len(step.users), 3, 4, generator=draw, dtype=torch.float64).requires_grad_()
    return replace(step, exposed=vectors, exposed_keep=KEEP[: len(step.users)])


def test_is_the_choice_among_what_was_shown() -> None:
    step, config = shown(random_inputs(1)), TrainerConfig(negatives=NegativesConfig(exposed=3, exposed_weight=0.7))
    for row, found in enumerate(exposure_of(step, config).tolist()):
        user = step.users[row]
        chosen = math.exp(float((user @ step.positives[row]).detach()) / step.temperature)
        beside = [
            math.exp(float((user @ one).detach()) / step.temperature) for one in step.given("exposed")[row][KEEP[row]]
        ]
        assert found == pytest.approx(-0.7 * math.log(chosen / (chosen + sum(beside))), rel=1e-9, abs=1e-12)


def test_what_takes_no_part_gets_no_gradient_and_the_positive_is_pulled() -> None:
    step = shown(random_inputs(2))
    exposed = step.given("exposed")
    of_exposed, of_positives = torch.autograd.grad(exposure_of(step, TrainerConfig()).sum(), [exposed, step.positives])
    assert torch.equal(of_exposed.abs().sum(2) > 0, KEEP)
    assert torch.equal(of_positives.abs().sum(1) > 0, KEEP.any(1))


@pytest.mark.parametrize("name", CASES)
def test_comes_on_top_of_every_loss(name: str) -> None:
    config = CASES[name][0]
    plain, with_list = random_inputs(3), shown(random_inputs(3))
    found, alone = step_loss(with_list, config), step_loss(plain, config)
    torch.testing.assert_close(found.losses, alone.losses + exposure_of(with_list, config), rtol=1e-12, atol=1e-12)
    if alone.drawn is not None:
        assert torch.equal(found.drawn, alone.drawn)
