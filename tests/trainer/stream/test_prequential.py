import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import Store, WindowLog
from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from trainer.config import TrainerConfig
from trainer.ranks.workers import Workers
from trainer.state.evaluation import Evaluation
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples
from trainer.step.positives import Positives, read_positives
from trainer.step.step import train_step
from trainer.stream import prequential
from trainer.stream.prequential import ScoredBlock, evaluate, scored_blocks


@pytest.fixture
def taught(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    synthetic(writer, windows=1, items=80, seed=1, step_ms=7_200_000)
    state = absorbed(store, config)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    return state


def evaluated(store: Store, state: TrainerState) -> tuple[Evaluation, Positives]:
    log = WindowLog(store)
    manifest = log.committed()[1]
    found = read_positives(log, manifest, state.config.tower.history_length)
    return evaluate(state, manifest, found, Workers()), found


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
    evaluation = evaluate(TrainerState.fresh(config), manifest, found, Workers())
    assert (evaluation.items, evaluation.known, evaluation.recall) == (0, 0, {})


def test_a_model_of_nan_finds_nothing(store: Store, taught: TrainerState) -> None:
    taught.embeddings.weight.fill_(torch.nan)
    evaluation, _ = evaluated(store, taught)
    assert set(evaluation.recall.values()) == {0.0}
    assert evaluation.popularity_recall[20] > 0


@pytest.mark.parametrize("filter_seen", [False, True])
def test_blocks_hold_few_scores_and_their_size_changes_nothing(
    store: Store, taught: TrainerState, filter_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught.config = taught.config.model_copy(update={"evaluation_filter_seen": filter_seen})
    log = WindowLog(store)
    tested = Examples.of(read_positives(log, log.committed()[1], taught.config.tower.history_length), taught.table)

    def ranks(block: int, most: int, chunk: int = 1 << 14) -> tuple[list[int], set[int], set[int]]:
        monkeypatch.setattr(prequential, "_BLOCK", block)
        monkeypatch.setattr(prequential, "_CHUNK", chunk)
        monkeypatch.setattr(prequential, "_MOST_ROWS", most)
        found, sizes, memory = [], set(), set()
        for one in scored_blocks(taught, tested):
            found += one.ranks().tolist()
            sizes.add(len(one.scores))
            memory.add(one.scores.data_ptr())
        return found, sizes, memory

    whole, sizes, _ = ranks(1 << 25, 10**6)
    assert sizes == {len(tested)}
    parts, sizes, memory = ranks(1, 10**6)
    assert max(sizes) == 16
    assert len(memory) == 1
    # Products of other shapes may differ in the last bit, so that close scores change places.
    assert np.abs(np.array(parts) - np.array(whole)).max() <= 1
    assert np.mean(np.array(parts) == np.array(whole)) > 0.99
    assert max(ranks(1 << 25, 20)[1]) == 20
    pieces, *_ = ranks(1 << 25, 10**6, chunk=7)
    assert np.abs(np.array(pieces) - np.array(whole)).max() <= 1
    assert np.mean(np.array(pieces) == np.array(whole)) > 0.99


@given(st.integers(0, 10_000), st.sampled_from([8, 2500]), st.integers(1, 6), st.booleans())
def test_the_best_and_the_places_are_those_without_what_was_seen(seed: int, items: int, k: int, filtered: bool) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.from_numpy(draw.permutation(3 * items).reshape(3, items)).float()
    targets, seen = (
        torch.from_numpy(draw.integers(-1, items, 3)),
        torch.from_numpy(draw.integers(-1, min(items, 9), (3, 5))),
    )
    places = torch.from_numpy(draw.permutation(items) + 1)
    block = ScoredBlock(scores, targets, seen if filtered else None)
    best, found = block.best(k).tolist(), block.ranks_in(places).tolist()
    values, order_of = scores.tolist(), places.tolist()
    for row, target in enumerate(targets.tolist()):
        hidden = set(seen[row].tolist()) if filtered else set()
        order = sorted(range(items), key=lambda column: (column in hidden, -values[row][column]))
        shown = items - len(hidden - {-1})
        assert best[row][:shown] == order[: min(k, shown)]
        assert len(best[row]) == min(k, items)
        above = [c for c in range(items) if c not in hidden and order_of[c] < order_of[target]]
        assert found[row] == (len(above) + 1 if target >= 0 else items + 1)
