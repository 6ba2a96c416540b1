""""""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, WindowLog
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import FIRST_ITEM
from weir.trainer.ranking import distinct
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.progress import Evaluation
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Examples
from weir.trainer.step.positives import Positives, SharedWindow, read_positives
from weir.trainer.stream import prequential as scored
from weir.trainer.stream.prequential import OwnItems, ScoredBlock, _together, evaluate, scored_blocks


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


CAPACITY = 64


@given(st.integers(0, 10_000), st.integers(0, 20), st.booleans())
def test_more_popular_items_are_counted_whichever_rank_keeps_them(seed: int, items: int, hides: bool) -> None:
    draw = np.random.default_rng(seed)
    rows = np.sort(draw.choice(np.arange(2, CAPACITY), items, replace=False))
    counts, asked = draw.integers(0, 4, items) / 2, draw.integers(2, CAPACITY, 7)
    often = draw.integers(0, 8, 7) / 4
    hidden = np.stack([draw.permutation(np.arange(-1, items))[:3] for _ in asked]) if hides and items > 1 else None
    own = OwnItems(torch.from_numpy(rows), torch.from_numpy(counts), Places(CAPACITY))
    found = own.more_popular(
        torch.from_numpy(asked), torch.from_numpy(often), None if hidden is None else torch.from_numpy(hidden)
    )
    for number, (row, count) in enumerate(zip(asked.tolist(), often.tolist(), strict=True)):
        barred = set() if hidden is None else set(hidden[number].tolist())
        kept = [(-counts[c], rows[c]) for c in range(items) if c not in barred]
        assert found[number] == sum(pair < (-count, row) for pair in kept)


@given(st.sets(st.integers(2, CAPACITY - 1)), st.integers(1, 3))
def test_columns_are_found_by_row(rows: set[int], ranks: int) -> None:
    found = dict[int, int]()
    for rank in range(ranks):
        places = Places(CAPACITY, rank, ranks)
        every = places.rows_at(torch.arange(len(places.here)))
        held = every[torch.isin(every, torch.tensor(sorted(rows), dtype=torch.int64))]
        columns = OwnItems(held, torch.ones(len(held)), places).columns(torch.arange(CAPACITY))
        for row in range(CAPACITY):
            if columns[row] >= 0:
                assert held[columns[row]] == row
                found[row] = rank
    assert found.keys() == rows


@pytest.mark.parametrize("filter_seen", [False, True])
def test_blocks_hold_few_scores_and_their_size_changes_nothing(
    store: Store, taught: TrainerState, filter_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught.config = taught.config.model_copy(update={"evaluation_filter_seen": filter_seen})
    log = WindowLog(store)
    tested = Examples.of(read_positives(log, log.committed()[1], taught.config.tower.history_length), taught.table)

    def ranks(block: int, most: int, chunk: int = 1 << 14) -> tuple[list[int], set[int], set[int]]:
        monkeypatch.setattr(scored, "_BLOCK", block)
        monkeypatch.setattr(scored, "_CHUNK", chunk)
        monkeypatch.setattr(scored, "_MOST_ROWS", most)
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


def test_a_setting_bounds_the_scores_held() -> None:
    assert [_together(items, None) for items in (1000, 200_000, 20_000_000)] == [256, 167, 16]
    for items in (0, 1000, 200_000, 20_000_000):
        for memory_mb in (1, 100, 1000):
            count = _together(items, memory_mb)
            assert count in (1, 256) or 4 * items * count <= memory_mb << 20 < 4 * items * (count + 1)
    assert _together(20_000_000, 1000) == 13


@given(st.integers(0, 10_000), st.sampled_from([8, 2500]), st.integers(1, 6), st.booleans())
def test_the_best_and_the_ranks_are_those_without_what_was_seen(seed: int, items: int, k: int, filtered: bool) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.from_numpy(draw.permutation(3 * items).reshape(3, items)).float()
    # Every second row has an item; the row before the first stands for those without one.
    rows = FIRST_ITEM + 2 * torch.arange(items)
    targets, seen = draw.integers(-1, items, 3), draw.integers(-1, min(items, 9), (3, 5))
    counts = torch.from_numpy(draw.integers(1, 5, items)).double()
    positives, histories = (
        torch.where(one >= 0, FIRST_ITEM + 2 * one, 1) for one in (torch.from_numpy(targets), torch.from_numpy(seen))
    )
    own = OwnItems(rows, counts, Places(2 * items + FIRST_ITEM))
    block = ScoredBlock(scores, own, positives, histories if filtered else None, items, Workers())
    best = ((block.best(k) - FIRST_ITEM) // 2).tolist()
    places, ranks = block.ranks_by_count(counts[targets]).tolist(), block.ranks().tolist()
    for row, target in enumerate(targets.tolist()):
        hidden = set(seen[row].tolist()) if filtered else set()
        values, often = scores[row].tolist(), counts.tolist()
        order = sorted(range(items), key=lambda column: (column in hidden, -values[column]))
        shown = items - len(hidden - {-1})
        assert best[row][:shown] == order[: min(k, shown)]
        assert len(best[row]) == min(k, items)
        before = {"score": 0, "count": 0}
        for other in set(range(items)) - hidden - {target}:
            before["score"] += values[other] > values[target]
            before["count"] += (-often[other], other) < (-often[target], target)
        missed = target < 0
        assert ranks[row] == (items + 1 if missed else before["score"] + 1)
        assert places[row] == (items + 1 if missed else before["count"] + 1)


@given(st.integers(0, 10_000), st.booleans())
def test_ties_go_to_the_lower_row_in_whatever_order_a_rank_has_them(seed: int, filtered: bool) -> None:
    draw = np.random.default_rng(seed)
    places = Places(16)
    order = draw.permutation(np.arange(FIRST_ITEM, 14))
    # A single rank has rows in their order; here they are in another, as on one of several.
    own = OwnItems(torch.from_numpy(order), torch.ones(12), places)
    scores, positives = torch.from_numpy(draw.integers(0, 3, (5, 12))).float(), torch.from_numpy(order[:5])
    seen = torch.from_numpy(draw.integers(0, 12, (5, 4)))
    block = ScoredBlock(scores, own, positives, None, 12, Workers())
    block.__dict__["_hidden"] = distinct(seen) if filtered else None
    found = block._above(scores[torch.arange(5), torch.arange(5)])
    for number in range(5):
        hidden = set(seen[number].tolist()) if filtered else set()
        keys = [(-scores[number, c].item(), int(order[c])) for c in range(12) if c not in hidden]
        assert found[number] == sum(key < (-scores[number, number].item(), int(order[number])) for key in keys)
