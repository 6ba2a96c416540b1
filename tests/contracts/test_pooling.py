"""Recall gauges of monitor and trainer against the cases themselves, whatever the panes that they come in."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from weir.contracts import WindowName
from weir.contracts.places import GATE_CASES
from weir.contracts.pooling import of_newest_windows
from weir.serving.monitor.metrics import MonitorMetrics
from weir.serving.monitor.newest import mean_recall
from weir.serving.monitor.results import Examples, WindowRecall
from weir.trainer.config import TrainerConfig
from weir.trainer.state.evaluation import Evaluation, mean_metrics
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.metrics import TrainerMetrics

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
