"""From the configuration to the loss of a step: one objective for every `loss.kind`.

An objective turns a `View` of the step into one loss per row. The mathematics is in `trainer.losses`; here stands only
which of the step's parts each of them takes.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from torch import Tensor

from trainer import losses
from trainer.config import LossConfig, LossKind, TrainerConfig
from trainer.step.resampled import resampled
from trainer.step.view import Population, View

__all__ = ["Population", "Result", "View", "evaluate"]


class Result(NamedTuple):
    """Losses (b,) of the rows, and the columns of the pool followed by the cache, drawn by resampling, of any shape."""

    losses: Tensor
    drawn: Tensor | None = None


def evaluate(view: View, config: TrainerConfig) -> Result:
    """Return what `config.loss` makes of a step; without rows, no losses.

    A lone row, as the last batch of a window may hold, teaches the losses of whole batches nothing: its loss is 0.
    """
    if len(view.users) < (2 if config.loss.asks_for_users else 1):
        return Result(0 * view.users.sum(1))
    if config.loss.kind == "resampled_softmax":
        return Result(*resampled(view, config.loss))
    return Result(_OBJECTIVES[config.loss.kind](view, config))


def _sampled_softmax(view: View, config: TrainerConfig) -> Tensor:
    return _chunked(view, config.negatives.correction)


def _softmax(view: View, _: TrainerConfig) -> Tensor:
    return _chunked(view, "none")


def _chunked(view: View, correction: str) -> Tensor:
    return losses.sampled_softmax_in_batch(
        view.users,
        view.columns,
        pos=view.pos,
        hits=view.hits,
        log_q_pos=view.log_q_pos,
        log_q_neg=view.log_q_columns,
        correction=correction,
        temperature=view.temperature,
    )


def _bce(view: View, _: TrainerConfig) -> Tensor:
    return losses.bce(view.pos, view.pooled, view.keep)


def _gbce(view: View, config: TrainerConfig) -> Tensor:
    # A young table has fewer items than the pool has draws.
    size, calibration = max(_population(view).shape[1], len(view.columns) + 1), config.loss.calibration
    return losses.gbce(view.pos, view.pooled, catalog_size=size, calibration=calibration, keep=view.keep)


def _debiased_contrastive(view: View, config: TrainerConfig) -> Tensor:
    tau_plus = config.loss.tau_plus
    return losses.debiased_contrastive(
        view.all_positives, view.unlabelled, tau_plus=tau_plus, temperature=view.temperature
    )


def _hard_contrastive(view: View, config: TrainerConfig) -> Tensor:
    settings = {"tau_plus": config.loss.tau_plus, "beta": config.loss.beta, "temperature": view.temperature}
    return losses.hard_contrastive(view.all_positives, view.unlabelled, **settings)


def _debiased_positive(view: View, config: TrainerConfig) -> Tensor:
    self_logit = view.users.square().sum(1) / view.temperature
    return losses.debiased_positive(
        view.all_positives, view.unlabelled, tau_plus=config.loss.tau_plus, self_logit=self_logit
    )


def _bpr(view: View, _: TrainerConfig) -> Tensor:
    neg = view.unlabelled
    return losses.bpr(view.pos.repeat_interleave(neg.shape[1]), neg.flatten()).view_as(neg).mean(1)


def _dpl(view: View, config: TrainerConfig) -> Tensor:
    tau_plus, floor = config.loss.tau_plus, config.loss.floor
    extra = view.all_positives[:, 1:]
    return losses.dpl(view.pos, extra, view.unlabelled, tau_plus=tau_plus, floor=floor)


def _pointwise(view: View, config: TrainerConfig) -> Tensor:
    population, settings = _population(view), config.loss
    if settings.asks_for_labels:
        return _labelled(view, settings)
    total = losses.pointwise_in_batch(
        view.users @ view.positives.T / view.temperature,
        row_count=population.row_count,
        col_count=population.column_count,
        num_positives=population.positives,
        shape=population.shape,
        objective=settings.objective,
        link=settings.link,
        omega=settings.omega,
    )
    return total.expand(len(view.users))


def _labelled(view: View, settings: LossConfig) -> Tensor:
    if view.labels is None:
        raise ValueError(f"labels must be given for sampling={settings.sampling!r}, got None")
    grid = settings.sampling == "cross"
    scores = view.users @ view.positives.T / view.temperature if grid else view.pos
    return losses.pointwise_labelled(scores, view.labels, link=settings.link).expand(len(view.users))


def _sogram(view: View, config: TrainerConfig) -> Tensor:
    """Split the batch: the pairs of one half, the items of the other."""
    population, half = _population(view), len(view.users) // 2
    total = losses.sogram(
        view.pos[:half],
        view.users[:half] @ view.positives[half:].T / view.temperature,
        row_count=population.row_count[:half],
        col_count=population.column_count[half:],
        num_positives=population.positives,
        shape=population.shape,
        link=config.loss.link,
    )
    return total.expand(len(view.users))


def _population(view: View) -> Population:
    if view.population is None:
        raise ValueError("population must be given for this loss, got None")
    return view.population


_OBJECTIVES: Final[dict[LossKind, Callable[[View, TrainerConfig], Tensor]]] = {
    "sampled_softmax": _sampled_softmax,
    "full_softmax": _softmax,
    "info_nce": _softmax,
    "bce": _bce,
    "gbce": _gbce,
    "debiased_contrastive": _debiased_contrastive,
    "hard_contrastive": _hard_contrastive,
    "debiased_positive": _debiased_positive,
    "bpr": _bpr,
    "dpl": _dpl,
    "pointwise": _pointwise,
    "sogram": _sogram,
}
