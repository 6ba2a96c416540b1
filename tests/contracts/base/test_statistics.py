"""Confidence sequences against the definition of their boundary and by simulation; means over the newest windows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from weir.contracts import WindowName
from weir.contracts.base.statistics import GATE_CASES, Running, boundary, of_newest_windows
from weir.serving.monitor.metrics import MonitorMetrics
from weir.serving.monitor.results import Examples, WindowRecall, mean_recall
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.progress import Evaluation, mean_metrics
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.metrics import TrainerMetrics

ALPHA = 0.05
LOOKS = 2000
RUNS = 200


def test_the_boundary_is_where_a_mixture_of_rates_reaches_one_over_alpha() -> None:
    """Evaluated as the definition says, with plain numbers."""
    variance, alpha = 37.0, 0.025
    reach = boundary(variance, alpha)
    rates = [1e-4 * (0.95 / 1e-4) ** (i / 47) for i in range(48)]
    terms = [math.exp(rate * reach - (-math.log(1 - rate) - rate) * variance) for rate in rates]
    assert sum(terms) / 48 == pytest.approx(1 / alpha, rel=1e-6)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-6, 0.5))
def test_the_boundary_grows_with_variance_and_shrinks_with_alpha(one: float, other: float, alpha: float) -> None:
    """More variance allows for more, a smaller alpha as well."""
    assert boundary(min(one, other), alpha) <= boundary(max(one, other), alpha) + 1e-9
    assert boundary(one, alpha) <= boundary(one, alpha / 2) + 1e-9


def test_without_variance_few_observations_are_conclusive() -> None:
    """Hundreds of ones bound the mean near 1: the range alone would not."""
    low, high = Running().add(np.ones(400)).interval(ALPHA)
    assert low > 0.97
    assert high == 1.0


def test_nothing_seen_says_nothing() -> None:
    """The interval holds everything."""
    assert Running().interval(ALPHA) == (0.0, 1.0)
    assert Running().add([]) == Running()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 30))
def test_adding_in_pieces_is_adding_at_once(values: list[float], cut: int) -> None:
    """A restart between two windows changes nothing."""
    once, twice = Running().add(values), Running().add(values[:cut]).add(values[cut:])
    assert once.count == twice.count
    assert once.total == pytest.approx(twice.total)
    assert once.variance == pytest.approx(twice.variance)


def test_the_variance_is_measured_from_the_mean_before() -> None:
    """A prediction may use the past alone: value by value, in plain Python."""
    values, seen, wanted = [0.2, 0.9, 0.4, 1.0], [0.5], 0.0
    for value in values:
        wanted += (value - sum(seen) / len(seen)) ** 2
        seen.append(value)
    assert Running().add(values).variance == pytest.approx(wanted)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_an_observation_out_of_range_is_refused(value: float) -> None:
    """The intervals hold for [0, 1] alone."""
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        Running().add([0.5, value])


def _misses(draws: np.ndarray, means: np.ndarray) -> tuple[float, float]:
    """Return the share of runs in which the interval, and a naive one, ever misses the running mean of the means."""
    counts = np.arange(1, LOOKS + 1)
    wrong, naive = 0, 0
    for values, mean in zip(draws, means, strict=True):
        truth, average = np.cumsum(mean) / counts, np.cumsum(values) / counts
        errors = np.sqrt(np.maximum(average * (1 - average), 1e-12) / counts)
        naive += bool((np.abs(average - truth) > 1.96 * errors)[30:].any())
        running, missed = Running(), False
        for start in range(0, LOOKS, 50):
            running = running.add(values[start : start + 50])
            low, high = running.interval(ALPHA)
            missed = missed or not low <= truth[start + 49] <= high
        wrong += missed
    return wrong / len(draws), naive / len(draws)


def test_looking_at_any_time_is_wrong_at_most_as_often_as_promised() -> None:
    """Independent draws, 40 looks a run: at most alpha of the runs; the naive interval fails in many of them."""
    random = np.random.default_rng(0)
    wrong, naive = _misses(random.random((RUNS, LOOKS)) < 0.3, np.full((RUNS, LOOKS), 0.3))
    assert wrong <= ALPHA
    assert naive > 5 * ALPHA


def test_means_that_drift_and_depend_on_the_past_are_covered() -> None:
    """The mean of each draw follows from those before it: what is covered is the running mean of these means."""
    random = np.random.default_rng(1)
    draws, means = np.zeros((RUNS, LOOKS)), np.zeros((RUNS, LOOKS))
    memory = np.full(RUNS, 0.5)
    for look in range(LOOKS):
        means[:, look] = 0.2 + 0.5 * memory + 0.1 * np.sin(look / 100)
        draws[:, look] = random.random(RUNS) < means[:, look]
        memory += 0.1 * (draws[:, look] - memory)
    wrong, _ = _misses(draws, means)
    assert wrong <= ALPHA


K = 20


@dataclass(frozen=True)
class Pane:
    """Cases of a pane, (n,), 1 where the next item was found."""

    name: WindowName
    cases: list[int]


def panes_of(seed: int, windows: list[int]) -> tuple[list[list[int]], list[Pane]]:
    """Draw the cases of windows of these sizes, and split each into panes that come in any order between windows."""
    draw = np.random.default_rng(seed)
    cases = [draw.integers(0, 2, size).tolist() for size in windows]
    queues = []
    for number, found in enumerate(cases):
        cuts = sorted(draw.integers(0, len(found) + 1, draw.integers(0, 5)).tolist())
        parts = [found[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(found)], strict=True)]
        start_ms = 10_000 * number
        queues.append([Pane(WindowName(start_ms, start_ms + 10_000, pane), one) for pane, one in enumerate(parts)])
    order = draw.permutation(np.repeat(np.arange(len(queues)), [len(queue) for queue in queues]))
    places = [iter(queue) for queue in queues]
    return cases, [next(places[window]) for window in order]


def recall_of(sequence: int, pane: Pane) -> WindowRecall:
    mean = {K: float(np.mean(pane.cases))} if pane.cases else {}
    return WindowRecall(
        sequence=sequence,
        window=str(pane.name),
        measured_at=0,
        bundle_versions=(),
        examples=Examples(model=len(pane.cases), served=len(pane.cases), popularity=len(pane.cases)),
        **dict.fromkeys(("index", "model", "served", "committed", "popularity"), mean),
    )


def evaluation_of(sequence: int, pane: Pane) -> Evaluation:
    mean = {K: float(np.mean(pane.cases))} if pane.cases else {}
    facts = {"window": str(pane.name), "sequence": sequence, "step": 0, "known": 0, "items": 1, "seen_filtered": False}
    metrics = dict.fromkeys(("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits"), mean)
    return Evaluation.model_validate(facts | {"events": len(pane.cases)} | metrics)


def monitored(panes: list[Pane]) -> Callable[[str], float | None]:
    registry = CollectorRegistry()
    metrics = MonitorMetrics(registry)
    for sequence, pane in enumerate(panes):
        metrics.measured(recall_of(sequence, pane))
    return lambda name: registry.get_sample_value(name, {"k": str(K)})


def trained(panes: list[Pane]) -> Callable[[str], float | None]:
    registry = CollectorRegistry()
    metrics = TrainerMetrics(registry)
    for sequence, pane in enumerate(panes):
        metrics.evaluated(evaluation_of(sequence, pane))
    return lambda name: registry.get_sample_value(name, {"k": str(K)})


def oracle(cases: list[list[int]], enough: int) -> float | None:
    """The mean over the cases of the newest windows, whole ones, until there are enough."""
    pooled: list[int] = []
    for found in reversed(cases):
        pooled += found
        if len(pooled) >= enough:
            break
    return float(np.mean(pooled)) if pooled else None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), windows=st.lists(st.integers(0, 300), min_size=1, max_size=6))
def test_gauges_are_those_of_the_cases_for_any_split_into_panes(seed: int, windows: list[int]) -> None:
    cases, panes = panes_of(seed, windows)
    wanted = oracle(cases, GATE_CASES)
    monitor, trainer = monitored(panes), trained(panes)
    for name in ("index", "model", "served", "committed", "popularity"):
        assert monitor(f"weir_recall_{name}") == (None if wanted is None else pytest.approx(wanted))
    for name in ("weir_trainer_prequential_recall", "weir_trainer_popularity_recall"):
        assert trainer(name) == (None if wanted is None else pytest.approx(wanted))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), windows=st.lists(st.integers(1, 50), min_size=1, max_size=8), last=st.integers(1, 6)
)
def test_means_over_windows_are_those_of_their_cases_for_any_split(seed: int, windows: list[int], last: int) -> None:
    cases, panes = panes_of(seed, windows)
    wanted = float(np.mean([case for found in cases[-last:] for case in found]))
    recalls = [recall_of(sequence, pane) for sequence, pane in enumerate(panes)]
    assert mean_recall(recalls, "model", K, last) == pytest.approx(wanted)
    named = [(str(pane.name), evaluation_of(sequence, pane)) for sequence, pane in enumerate(panes)]
    assert mean_metrics(of_newest_windows(named, last))["recall@20"] == pytest.approx(wanted)


def test_a_late_event_hardly_moves_a_gauge_and_a_bundle_s_metrics() -> None:
    full = [Pane(WindowName(10_000 * n, 10_000 * (n + 1)), [1, 0] * 250) for n in range(6)]
    late = [Pane(WindowName(50_000, 60_000, pane), [0]) for pane in range(1, 6)]
    assert monitored([*full, *late])("weir_recall_model") == pytest.approx(250 / 505)
    state = TrainerState.fresh(TrainerConfig(gate_windows=5))
    for sequence, pane in enumerate([*full, *late]):
        state.evaluated(evaluation_of(sequence, pane))
    assert mean_metrics(state.recent)["recall@20"] == pytest.approx(1250 / 2505)
