import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import Store, WindowLog
from weir.trainer.items.places import Places
from weir.trainer.items.rows import FIRST_ITEM
from weir.trainer.ranking import distinct
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Examples
from weir.trainer.step.positives import read_positives
from weir.trainer.stream import scored
from weir.trainer.stream.own_items import OwnItems
from weir.trainer.stream.scored import ScoredBlock, _together, scored_blocks


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
