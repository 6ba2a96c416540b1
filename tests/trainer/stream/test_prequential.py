import numpy as np
import pytest
import torch

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, WindowLog
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.evaluation import Evaluation
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import Positives, read_positives
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.stream.prequential import evaluate


def evaluated(store: Store, state: TrainerState) -> tuple[Evaluation, Positives]:
    log = WindowLog(store)
    manifest = log.committed()[1]
    found = read_positives(log, manifest, state.config.tower.history_length)
    tested = SharedWindow(found, Workers()).sampled(0, manifest.sequence, state.config.evaluation_examples)
    return evaluate(state, manifest, tested), found


@pytest.mark.parametrize("filter_seen", [False, True])
def test_figures_are_those_of_ranking_example_by_example(store: Store, taught: TrainerState, filter_seen: bool) -> None:
    settings = {**taught.config.model_dump(), "evaluation_filter_seen": filter_seen, "evaluation_examples": 10**6}
    taught.config = TrainerConfig.model_validate(settings)
    evaluation, found = evaluated(store, taught)
    keys, weight = taught.table.keys[taught.table.live].tolist(), taught.embeddings.weight
    items = torch.nn.functional.normalize(weight[torch.from_numpy(taught.table.live)], dim=1)
    taught.tower.eval()
    ranks: dict[str, list[float]] = {"model": [], "popularity": []}
    for key, history in zip(found.items.tolist(), found.histories, strict=True):
        rows = torch.from_numpy(taught.table.rows(history))
        with torch.no_grad():
            user = torch.nn.functional.normalize(taught.tower(weight[rows][None], (rows != 0)[None])[0], dim=0)
        popularity = taught.frequencies.counts(np.array(keys))
        for name, values in (("model", (items @ user).tolist()), ("popularity", popularity.tolist())):
            barred = set(history.tolist()) - {key} if filter_seen else set()
            order = sorted((-value, other) for other, value in enumerate(values) if keys[other] not in barred)
            place = [keys[other] for _, other in order]
            ranks[name].append(place.index(key) + 1 if key in place else 10**9)
    assert evaluation.events == len(found.items)
    assert evaluation.known == sum(key in keys for key in found.items.tolist())
    assert evaluation.known < evaluation.events
    for k in (1, 5, 20):
        # Scores that differ by rounding alone may change places with their neighbour.
        assert evaluation.recall[k] == pytest.approx(np.mean(np.array(ranks["model"]) <= k), abs=0.006)
        assert evaluation.popularity_recall[k] == pytest.approx(np.mean(np.array(ranks["popularity"]) <= k))


def test_a_sample_is_the_same_each_time_and_no_larger_than_asked(store: Store, taught: TrainerState) -> None:
    first, _ = evaluated(store, taught)
    again, _ = evaluated(store, taught)
    assert first == again
    assert first.events == taught.config.evaluation_examples


def test_before_the_first_window_there_is_nothing_to_rank(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    manifest, *_ = synthetic(writer, windows=1)
    found = read_positives(WindowLog(store), manifest, 4)
    evaluation = evaluate(TrainerState.fresh(config), manifest, found)
    assert (evaluation.items, evaluation.known, evaluation.recall) == (0, 0, {})


def test_a_model_of_nan_finds_nothing(store: Store, taught: TrainerState) -> None:
    taught.embeddings.weight.fill_(torch.nan)
    evaluation, _ = evaluated(store, taught)
    assert set(evaluation.recall.values()) == {0.0}
    assert evaluation.popularity_recall[20] > 0
