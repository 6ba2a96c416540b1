""""""

from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import lines_of_ranks
from tests.trainer.items.live import live_rows
from weir.contracts import ItemKeys
from weir.sketches import CountMinSketch, ExactCounter, FrequencyEstimator, FrequencyView
from weir.trainer.items import stored
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import TableRows
from weir.trainer.items.table import ItemTable, RowChanges
from weir.trainer.log_q.floored_sum import FlooredSum
from weir.trainer.log_q.row_counts import FetchedCounts, LogQ, RowCounts, Users, counted
from weir.trainer.log_q.units import Units
from weir.trainer.ranks.workers import Workers

VALUES = st.lists(st.one_of(st.just(0.0), st.floats(1e-310, 1e-290), st.floats(1e-9, 1e9)), max_size=40)


def summed(values: list[float], scale: float, floor: float) -> float:
    return sum(max(value * scale, floor) for value in values)


@given(VALUES, VALUES, st.floats(1e-6, 1e3), st.floats(1e-3, 1e3))
def test_it_is_the_sum_of_what_is_left_each_raised_to_the_floor(
    kept: list[float], gone: list[float], scale: float, floor: float
) -> None:
    sums = FlooredSum()
    sums.add(np.array(gone))
    sums.add(np.array(kept))
    sums.remove(np.array(gone))
    found, wanted = sums.total(scale, floor), summed(kept, scale, floor)
    # Too small by what is taken together, in the bin that the floor cuts.
    assert wanted * (1 - 2**-12) <= found <= wanted * (1 + 1e-12)
    cut = [value for value in kept if 1 - 2**-10 < value * scale / floor < 1 + 2**-10]
    if not cut:
        assert found == pytest.approx(wanted, rel=1e-9)


@given(VALUES, VALUES, st.floats(1e-6, 1e3))
def test_the_same_values_give_the_same_bits_whatever_came_and_went(
    kept: list[float], gone: list[float], scale: float
) -> None:
    sums, alone = FlooredSum(), FlooredSum()
    sums.add(np.array(kept[::2]))
    sums.add(np.array(gone))
    sums.remove(np.array(gone[1:]))
    sums.add(np.array(kept[1::2]))
    sums.remove(np.array(gone[:1]))
    alone.add(np.array(kept))
    assert sums.total(scale, 0.5) == alone.total(scale, 0.5)


@given(VALUES, VALUES, st.integers(1, 4), st.floats(1e-6, 1e3))
def test_several_have_the_bits_of_one_though_one_removes_what_another_added(
    kept: list[float], gone: list[float], count: int, scale: float
) -> None:
    sums, alone = [FlooredSum() for _ in range(count)], FlooredSum()
    for number, value in enumerate(kept + gone):
        sums[number % count].add(np.array([value]))
    for number, value in enumerate(gone):
        sums[(number + len(gone)) % count].remove(np.array([value]))
    alone.add(np.array(kept))
    joined = FlooredSum.of(np.concatenate([one.bins for one in sums]))
    assert joined.total(scale, 0.5) == alone.total(scale, 0.5)


def test_values_of_one_bin_that_came_here_and_went_there_leave_their_difference() -> None:
    here, there = FlooredSum(), FlooredSum()
    here.add(np.array([1.0]))
    here.remove(np.array([1.0 + 2**-20]))
    there.add(np.array([1.0 + 2**-20]))
    there.add(np.array([1.0]))
    assert FlooredSum.of(np.concatenate([here.bins, there.bins])).total(1.0, 0.0) == 2.0


def test_the_bins_of_values_that_lie_far_apart_are_made_when_they_come() -> None:
    sums = FlooredSum()
    for value in (1.0, 2.0**40, 2.0**-40, 3.0):
        sums.add(np.array([value]))
    assert sums.total(1.0, 0.0) == 4 + 2.0**40 + 2.0**-40
    assert sums.total(2.0, 10.0) == 30 + 2.0**41


def test_without_values_it_is_nothing() -> None:
    assert FlooredSum().total(1.0, 0.5) == 0


CPU = torch.device("cpu")


@given(st.lists(st.integers(2, 63), unique=True), st.integers(1, 4))
def test_each_row_has_one_line_of_one_rank(listed: list[int], ranks: int) -> None:
    rows, found = TableRows(np.array(listed, np.int64)), dict[int, float]()
    delta = {"units": torch.from_numpy(rows)[:, None].double(), "chosen": torch.ones(len(rows), dtype=torch.int8)}
    for rank in range(ranks):
        units = Units(1, CPU, Workers(rank, ranks))
        units.clear(64)
        _, mine = units.own(rows)
        units.load_rows(TableRows(rows[mine]), {line: values[mine] for line, values in delta.items()})
        own, lines = units.live(live_rows(set(listed)))
        assert units.units.sum() == own.sum()
        found |= dict(zip(own.tolist(), units.units[lines, 0].tolist(), strict=True))
    assert found == {row: float(row) for row in listed}


def test_lines_stay_when_the_table_grows_and_new_rows_have_nothing() -> None:
    units = Units(2, CPU, Workers())
    units.load(4, {"units": torch.arange(8.0).view(4, 2), "chosen": torch.ones(4, dtype=torch.int8)})
    units.grow(8)
    assert units.units.flatten().tolist() == [*range(8), *[0] * 8]
    assert units.chosen.tolist() == [1] * 4 + [0] * 4
    assert units.places.capacity == 8


def test_a_single_half_life_leaves_no_choice_to_store() -> None:
    one, two = Units(1, CPU, Workers()), Units(2, CPU, Workers())
    assert (one.stored, two.stored) == (("units",), ("units", "chosen"))
    one.load(4, {"units": torch.ones(4, 1)})
    assert one.chosen.tolist() == [0] * 4


HOUR = 3_600_000
STREAM = st.lists(
    st.tuples(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 200), st.sets(st.integers(1, 9), max_size=2)),
    min_size=1,
    max_size=7,
)
"""Windows: the keys of their events, their hours in any order, and the keys that lose their rows before."""


class Stream:
    """A table whose items all have rows, and their counts."""

    def __init__(self, half_life: float | tuple[float, ...], capacity: int = 4) -> None:
        self.view, self.table = FrequencyView(half_life), ItemTable(capacity)
        self.counts = RowCounts(self.view, self.table, torch.zeros(capacity, 1))
        self.number = 0

    def window(self, events: Iterable[int], hour: float, leave: Iterable[int] = (), sketch: str = "exact") -> TableRows:
        """Take in a window, and return what `follow` does."""
        counter: FrequencyEstimator = ExactCounter() if sketch == "exact" else CountMinSketch(8, 2)
        found = np.array(sorted(events), np.int64)
        counter.update(found)
        self.view.add(counter.to_bytes(), round(hour * HOUR))
        evicted = self._evict(list(leave))
        keys = ItemKeys(np.unique(found))
        admitted = self.table.admit(keys, keys.astype(str).astype(object), self.number)
        changes = RowChanges(admitted, evicted)
        return self.counts.follow(self.table.rows(keys), self.view.estimates(keys), changes)

    def _evict(self, keys: list[int]) -> TableRows:
        self.number += 1
        self.table.touch(ItemKeys(np.setdiff1d(self.keys, keys)), self.number)
        return self.table.expire(self.number)

    @property
    def log_q(self) -> LogQ:
        return LogQ(self.counts, self.counts.log_q)

    @property
    def live(self) -> torch.Tensor:
        return torch.from_numpy(self.table.live.copy())

    @property
    def keys(self) -> ItemKeys:
        return ItemKeys(self.table.keys[self.table.live])

    def restored(self) -> "Stream":
        """Return what a checkpoint would make of it, with some of the rows from a delta."""
        other = Stream(self.view.half_life_seconds)
        other.view.load_state_dict(self.view.state_dict())
        other.view.time_ms = self.view.time_ms
        other.table.load_state_dict(self.table.state_dict())
        other.table.index()
        whole = {name: value.clone() for name, value in self.counts.state_dict().items()}
        rows = TableRows(np.arange(0, self.table.capacity, 2))
        whole["units"][rows] = 7.0
        other.counts.load_state_dict(whole)
        other.counts.load_rows(rows, self.counts.state_of(rows))
        other.counts.recount()
        other.number = self.number
        return other


@given(STREAM, st.floats(0.5, 100))
def test_a_row_has_the_decayed_count_of_its_item_and_log_q_its_share(
    windows: list[tuple[list[int], int, set[int]]], half_life_hours: float
) -> None:
    stream = Stream(half_life_hours * 3600)
    for window in windows:
        assert len(stream.window(*window)) in {0, len(stream.table)}
    wanted = stream.view.counts(stream.keys)
    np.testing.assert_allclose(stream.counts[stream.live].numpy(), wanted, rtol=1e-9, atol=1e-12)
    found, floored = stream.log_q[stream.live].double().exp().numpy(), np.maximum(wanted, 0.5)
    if len(floored):
        np.testing.assert_allclose(found, np.minimum(floored / floored.sum(), 1 - 1e-6), rtol=5e-4)
        assert found.max() < 1


@given(STREAM, st.integers(0, 7), st.sampled_from([3600.0, (3600.0, 36000.0, 900000.0)]))
def test_a_restored_state_goes_on_bit_for_bit(
    windows: list[tuple[list[int], int, set[int]]], saved: int, half_life: float | tuple[float, ...]
) -> None:
    stream = Stream(half_life)
    for window in windows[:saved]:
        stream.window(*window)
    other = stream.restored()
    for window in windows[saved:]:
        assert stream.window(*window).tolist() == other.window(*window).tolist()
    assert stream.counts.log_total == other.counts.log_total
    every = torch.arange(stream.table.capacity)
    assert torch.equal(stream.log_q[every], other.log_q[every])
    mine, theirs = stream.counts.state_dict(), other.counts.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@given(STREAM)
def test_a_count_lies_between_the_truth_and_what_the_full_sketch_says_now(
    windows: list[tuple[list[int], int, set[int]]],
) -> None:
    stream, exact = Stream(36_000), FrequencyView(36_000)
    for events, hour, _ in windows:
        stream.window(events, hour, sketch="count_min")
        counter = ExactCounter()
        counter.update(np.array(events, np.int64))
        exact.add(counter.to_bytes(), hour * HOUR)
    found = stream.counts[stream.live].numpy()
    assert (found >= exact.counts(stream.keys) * (1 - 1e-9)).all()
    assert (found <= stream.view.counts(stream.keys) * (1 + 1e-9)).all()


def test_every_row_takes_the_half_life_that_its_item_takes_now() -> None:
    stream, draw = Stream((7200.0, 72_000.0, 720_000.0)), np.random.default_rng(0)
    for hour in range(60):
        # Half of the items change places half-way; most occur in few windows.
        rates = np.roll(np.arange(1, 41) ** -1.2, 20 if hour > 30 else 0)
        stream.window(draw.choice(40, 300, p=rates / rates.sum()).tolist(), hour)
    wanted = stream.view.counts(stream.keys)
    np.testing.assert_allclose(stream.counts[stream.live].numpy(), wanted, rtol=1e-9, atol=1e-12)
    floored = np.maximum(wanted, 0.5)
    found = stream.log_q[stream.live].double().exp().numpy()
    np.testing.assert_allclose(found, floored / floored.sum(), rtol=5e-4)


def test_an_item_that_is_gone_takes_a_shorter_half_life_within_a_sixteenth_of_the_shortest() -> None:
    stream = Stream((16 * 3600.0, 1600 * 3600.0))
    for hour in range(100):
        stream.window([1] * 30 + [2] * 30, hour)
    gone = stream.table.rows(ItemKeys(np.array([1])))
    early, late = stream.window([2] * 2000, 99.5), stream.window([2] * 2000, 100.5)
    assert (early.tolist(), late.tolist()) == ([], gone.tolist())
    np.testing.assert_allclose(stream.counts[stream.live].numpy(), stream.view.counts(stream.keys), rtol=1e-9)


def test_units_are_made_again_before_they_get_too_small() -> None:
    stream = Stream(3600)
    stream.window([1, 1, 2], 0)
    assert stream.window([2], 64).tolist() == []
    assert stream.window([2], 70).tolist() == stream.table.live.tolist()
    assert stream.window([3], 10**6).tolist() == stream.table.live.tolist()
    np.testing.assert_allclose(stream.counts[stream.live].numpy(), [0, 0, 1], atol=1e-12)
    assert stream.log_q[stream.live].exp().tolist() == pytest.approx([0.25, 0.25, 0.5], rel=1e-6)


def test_counts_that_no_checkpoint_holds_are_read_from_the_sketch() -> None:
    stream = Stream((3600.0, 36000.0))
    for hour in range(5):
        stream.window([1, 1, 2, *([3] * hour)], hour)
    counts = RowCounts(stream.view, stream.table, torch.zeros(8, 1))
    np.testing.assert_allclose(counts[stream.live].numpy(), stream.view.counts(stream.keys), rtol=1e-12)
    assert counts.log_total == pytest.approx(stream.counts.log_total, rel=1e-9)


def test_log_q_is_below_0_for_a_single_item_and_before_the_first_window() -> None:
    stream = Stream(3600)
    every = torch.arange(4)
    assert (stream.log_q[every] < 0).all()
    assert stream.counts[every].tolist() == [0] * 4
    stream.window([5, 5], 0)
    assert stream.log_q[stream.live].tolist() == pytest.approx([-1e-6])


def test_log_q_has_the_shape_of_the_rows_and_the_type_of_the_embeddings() -> None:
    table = ItemTable(4)
    counts = RowCounts(FrequencyView((1.0, 2.0)), table, torch.zeros(4, 1, dtype=torch.float16))
    found = LogQ(counts, counts.log_q)[torch.zeros(2, 3, dtype=torch.int64)]
    assert (found.shape, found.dtype) == ((2, 3), torch.float16)


def test_ranks_share_counts_that_are_those_of_one_alone(tmp_path: Path) -> None:
    kept = lines_of_ranks(3, Path(__file__).with_name("counts_of_ranks.py"), tmp_path)
    assert sum(kept) >= 128
    assert max(kept) - min(kept) <= 1


def test_counts_are_found_by_row_in_the_order_of_places() -> None:
    places = Places(16, 1, 3)
    rows, _ = places.distinct(torch.tensor([3, 0, 12, 7]))
    counts = FetchedCounts(places, places.key(rows), 10.0 * rows)
    assert counts[torch.tensor([[7, 7], [0, 12]]).T].tolist() == [[70, 0], [70, 120]]


@pytest.mark.parametrize("lives", [(60.0,), (60.0, 600.0)])
def test_counts_come_piece_by_piece_in_the_order_of_rows(lives: tuple[float, ...]) -> None:
    counts = RowCounts(FrequencyView(lives), ItemTable(16), torch.zeros(16, 1))
    counts.kept.units.copy_(torch.arange(16.0 * len(lives)).view(16, -1))
    counts.kept.chosen.copy_(torch.arange(16) % len(lives))
    wanted = counts.state_dict()
    with patch.object(stored, "_AT_ONCE", 5):
        found = counted(counts)
        assert found.keys() == wanted.keys() - {"times"}
        for line, lines in found.items():
            assert (lines.dtype, lines.shape) == (wanted[line].dtype, tuple(wanted[line].shape))
            assert torch.equal(torch.cat(list(lines)), wanted[line])
        some = TableRows(np.arange(1, 16, 2))
        for line, lines in counted(counts, some).items():
            assert lines.shape == tuple(wanted[line][some].shape)
            assert torch.equal(torch.cat(list(lines)), wanted[line][some])


HOUR_MS = 3_600_000


def window(users: Users, keys: list[int], event_ms: int) -> None:
    sketch, found = CountMinSketch(1 << 10), np.array(keys, np.int64)
    sketch.update(found)
    users.add(sketch.to_bytes(), found, event_ms)


def of(half_life: float | tuple[float, ...] = 3600.0) -> Users:
    return Users(FrequencyView(half_life))


def test_counts_fade_and_distinct_users_do_not() -> None:
    users = of()
    window(users, [11] * 8 + [22] * 4, 0)
    assert users.counts(np.array([11, 22])).tolist() == [8, 4]
    assert users.total == 12
    window(users, [33, 33], HOUR_MS)
    assert users.counts(np.array([11, 22, 33])) == pytest.approx([4, 2, 2])
    assert users.total == pytest.approx(8)
    assert round(users.distinct.count()) == 3
    window(users, [33], 40 * HOUR_MS)
    assert users.total == pytest.approx(1)
    assert round(users.distinct.count()) == 3


def test_whoever_occurs_counts_half_at_least() -> None:
    users = of()
    assert users.counts(np.array([11])).tolist() == [0.5]
    assert users.total == 0
    window(users, [11], 0)
    window(users, [22], 10 * HOUR_MS)
    assert users.counts(np.array([11, 22])) == pytest.approx([0.5, 1])


def test_a_late_window_enters_faded() -> None:
    users = of()
    window(users, [11], 2 * HOUR_MS)
    window(users, [22] * 8, 0)
    assert users.counts(np.array([11, 22])) == pytest.approx([1, 2])


@pytest.mark.parametrize("half_life", [3600.0, (600.0, 3600.0)])
def test_survives_its_tensors_and_goes_on_alike(half_life: float | tuple[float, ...]) -> None:
    users = of(half_life)
    window(users, [11] * 8 + list(range(100, 150)), 0)
    other = of(half_life)
    other.load_state_dict({name: value.copy() for name, value in users.state_dict().items()})
    keys = np.array([11, 22, 120])
    for _ in range(2):
        assert other.counts(keys).tolist() == users.counts(keys).tolist()
        assert other.total == users.total
        assert other.distinct.count() == users.distinct.count()
        assert users.state_dict().keys() == other.state_dict().keys()
        assert all(value.tobytes() == other.state_dict()[name].tobytes() for name, value in users.state_dict().items())
        for one in (users, other):
            window(one, [22, 22, 11], HOUR_MS)


def test_survives_its_tensors_before_the_first_window() -> None:
    other = of()
    other.load_state_dict(of().state_dict())
    assert (other.total, other.counts(np.array([11])).tolist()) == (0, [0.5])
