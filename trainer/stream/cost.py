"""Benchmark of a training step on the windows of a store, relative to the cost of tower and matrix products alone.

An untrained model ingests the newest windows as in a run, and trains on their examples. Nothing is written.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weir.contracts import WindowLog, WindowManifest
from weir.trainer.items.placement import distinct_and_places
from weir.trainer.items.table import PADDING
from weir.trainer.ranks.device import keep_freed_memory
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Batch, batches
from weir.trainer.step.gathered import GatheredHistories, Lookup
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.positives import SharedWindow
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.step import train_step
from weir.trainer.step.timer import Clock
from weir.trainer.step.vectors import forward_of
from weir.trainer.stream.learner import ingest

__all__ = ["StepCost", "batches_of", "measure", "newest"]

_WARM_UP: Final = 2
"""Warm-up steps before the measurement: they fill caches and memory pools."""


class _Round(NamedTuple):
    """Seconds of one step by part, of the tower alone and of the matrix products alone; and the number of examples."""

    parts: dict[str, float]
    tower: float
    products: float
    examples: int

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepCost:
    """Cost of a training step: medians over `steps` steps, in microseconds per example.

    `parts` are the parts of a whole `step`. `tower` is forward and backward of the user tower alone, including the
    lookup of the histories' item vectors. `products` are the logits of the shared negatives and their two gradients as
    plain matrix products; 0 if rows share no negatives. `ratio` is the median of step / (tower + products).
    """

    batch_size: int
    steps: int
    windows: int
    items: int
    parts: dict[str, float]
    step: float
    tower: float
    products: float
    ratio: float


def measure(log: WindowLog, config: TrainerConfig, steps: int) -> StepCost:
    """Measure up to `steps` steps on the newest windows, in CPU time if the device is the CPU.

    Raises
    ------
    ValueError
        If the windows hold too few examples for a measured step, or the settings do not fit a stream.
    """
    config.check_stream(1)
    keep_freed_memory()
    workers = Workers.from_environment(config.device)
    state, clock = TrainerState.fresh(config, workers.device), _clock(workers.device)
    manifests = newest(log, config.batch_size, steps + _WARM_UP)
    rounds = []
    with deterministic():
        for batch in batches_of(state, log, manifests, workers):
            rounds.append(_timed(state, batch, workers, clock))
            if len(rounds) == steps + _WARM_UP:
                break
    counted = rounds[_WARM_UP:]
    if not counted:
        raise ValueError(
            f"{len(manifests)} windows hold {len(rounds)} batches of {config.batch_size} examples, at least "
            f"{_WARM_UP + 1} are needed: set a smaller batch, or ingest more"
        )
    return _summary(config.batch_size, counted, len(manifests), len(state.table))


def newest(log: WindowLog, batch_size: int, steps: int) -> list[WindowManifest]:
    """Return the fewest of the newest windows with `steps` batches, or all windows."""
    count = 1
    while True:
        manifests = log.newest(count)
        held = sum(-(-manifest.counts.positives // batch_size) for manifest in manifests)
        if held >= steps or len(manifests) < count:
            return manifests
        count *= 2


def batches_of(
    state: TrainerState, log: WindowLog, manifests: list[WindowManifest], workers: Workers
) -> Iterator[Batch]:
    """Yield the batches of windows; each window is ingested before its batches."""
    config = state.config
    for manifest in manifests:
        window = SharedWindow.read(log, manifest, config, workers)
        ingest(state, log, manifest, window)
        order = generator(config.seed, Purpose.SHUFFLE, manifest.sequence)
        users, featured = state.users, state.featured_users
        yield from batches(window, state.table, config.batch_size, order, users=users, featured=featured)


def _timed(state: TrainerState, batch: Batch, workers: Workers, clock: Clock) -> _Round:
    """Train on a batch, and time the step, its tower and its products."""
    batch = batch.to(state.device)
    tower = _seconds(_tower(state, batch), clock)
    products = _seconds(_products(state, batch, workers), clock)
    parts = train_step(state, batch, workers, clock=clock).seconds
    return _Round(parts, tower, products, int(batch.real.sum()))


def _tower(state: TrainerState, batch: Batch) -> Callable[[], object]:
    """Return a function that runs the tower alone on a batch, forward and backward, from given item vectors."""
    dimension, weight, mask = state.config.tower.dimension, state.embeddings.weight, batch.histories != PADDING
    items, places = distinct_and_places(batch.histories.flatten())
    vectors = weight.new_ones(len(items), dimension).requires_grad_()
    forward = forward_of(state)
    parameters, above = list(state.tower.parameters()), weight.new_ones(len(mask), dimension)
    state.tower.train()

    def call() -> object:
        read = forward(GatheredHistories(Lookup(vectors), places.view_as(mask)), mask)
        return torch.autograd.grad(read, [vectors, *parameters], above, allow_unused=True)

    return call


def _products(state: TrainerState, batch: Batch, workers: Workers) -> Callable[[], object]:
    """Return a function that computes only the three matrix products of a step, of users and shared negatives."""
    sampled = sample_inputs(state, batch, workers)
    rows, dimension = len(sampled.share.positions), state.config.tower.dimension
    columns = 0 if sampled.columns is None else len(sampled.columns)
    users, items = (state.embeddings.weight.new_ones(count, dimension) for count in (rows, columns))
    logits = users.new_empty(rows, columns)

    def call() -> tuple[Tensor, Tensor]:
        torch.mm(users, items.T, out=logits)
        return logits @ items, logits.T @ users

    return call


def _seconds(call: Callable[[], object], clock: Clock) -> float:
    started = clock()
    call()
    return clock() - started


def _clock(device: torch.device) -> Clock:
    """Return a clock: CPU time, which other processes disturb least, or on a GPU wall time after synchronisation."""
    if device.type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def _summary(batch_size: int, rounds: list[_Round], windows: int, items: int) -> StepCost:
    def middle(values: list[float]) -> float:
        return float(np.median(values))

    def per_example(seconds: Callable[[_Round], float]) -> float:
        return middle([1e6 * seconds(one) / one.examples for one in rounds])

    return StepCost(
        batch_size=batch_size,
        steps=len(rounds),
        windows=windows,
        items=items,
        parts={part: per_example(lambda one, part=part: one.parts[part]) for part in rounds[0].parts},  # type: ignore[misc]
        step=per_example(lambda one: one.whole),
        tower=per_example(lambda one: one.tower),
        products=per_example(lambda one: one.products),
        ratio=middle([one.whole / (one.tower + one.products) for one in rounds]),
    )
