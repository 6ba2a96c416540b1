""""""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Batch
from weir.trainer.step.inputs import SampledInputs, sample_inputs
from weir.trainer.step.seeds import Purpose, derive, generator, seed_dropout
from weir.trainer.step.timer import StepTimer

seeds = st.integers(0, 2**63 - 1)


@given(seeds, st.sampled_from(list(Purpose)), st.lists(st.integers(-1, 2**62), max_size=3))
def test_a_draw_depends_on_its_place_alone(seed: int, purpose: Purpose, position: list[int]) -> None:
    first = torch.rand(3, generator=generator(seed, purpose, *position))
    torch.rand(5)
    assert torch.equal(first, torch.rand(3, generator=generator(seed, purpose, *position)))
    assert 0 <= derive(seed, purpose, *position) < 2**63


@given(seeds, st.integers(0, 1000))
def test_purposes_and_positions_are_independent(seed: int, step: int) -> None:
    found = {derive(seed, purpose, place) for purpose in Purpose for place in (step, step + 1)}
    assert len(found) == 2 * len(Purpose)


def test_a_generator_is_on_the_device_that_is_asked_for() -> None:
    assert generator(0, Purpose.RESAMPLING).device == torch.device("cpu")
    assert torch.equal(
        torch.rand(3, generator=generator(7, Purpose.ROWS, device=torch.device("cpu"))),
        torch.rand(3, generator=generator(7, Purpose.ROWS)),
    )


def test_dropout_depends_on_step_and_rank_alone() -> None:
    def dropped(step: int, rank: int) -> list[float]:
        seed_dropout(3, step, rank, torch.device("cpu"))
        return torch.nn.functional.dropout(torch.ones(64)).tolist()

    with torch.random.fork_rng(devices=[]):
        first = dropped(5, 1)
        assert dropped(5, 1) == first
        assert first not in (dropped(6, 1), dropped(5, 0))
        torch.manual_seed(derive(3, Purpose.DROPOUT, 5, 1))
        assert torch.nn.functional.dropout(torch.ones(64)).tolist() == first


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_generator_of_a_gpu_draws_for_it() -> None:
    draw = generator(0, Purpose.RESAMPLING, device=torch.device("cuda", 0))
    assert torch.multinomial(torch.ones(5, device="cuda"), 2, generator=draw).device.type == "cuda"


def test_every_part_has_the_time_since_the_part_before() -> None:
    moments = iter([10.0, 11.0, 13.5, 14.0])
    laps = StepTimer(lambda: next(moments))
    laps.end("draw")
    laps.end("loss")
    laps.end("draw")
    assert laps.seconds == {"draw": 1.5, "loss": 2.5}


OWN = {"in_batch": False, "uniform": 0, "per_row": 3}
BATCH = {"in_batch": True, "uniform": 0}
Prepare = Callable[..., TrainerState]


@pytest.fixture
def prepare(store: Store, writer: WindowWriter, config: TrainerConfig) -> Prepare:
    """Return a function that gives the state with changed settings, a window of 75 examples taken in."""
    synthetic(writer, windows=1, events=75)

    def prepare(**sections: dict[str, Any]) -> TrainerState:
        plain = config.model_dump()
        for name, values in sections.items():
            plain[name] |= values
        return absorbed(store, TrainerConfig.model_validate(plain))

    return prepare


def last_batch(store: Store, state: TrainerState) -> Batch:
    """Return the batch of 11 examples and 21 rows of padding."""
    batch = batches_of(store, state)[-1]
    assert int(batch.real.sum()) == 11
    return batch


def every_position(batch: Batch) -> Batch:
    """Return the same histories, read out at all positions that hold an item."""
    return batch._replace(positives=batch.histories.roll(-1, 1), real=batch.histories != PADDING)


@dataclass
class Rank(Workers):
    """A rank without the others: what all would sum up is which of the known items of the whole batch are real."""

    whole: Batch | None = None

    def sum(self, tensor: Tensor) -> Tensor:
        assert self.whole is not None
        known = self.whole.known.repeat_interleave(self.whole.positives[0].numel(), 0)
        assert tensor.shape == known.shape
        return (known != PADDING).to(tensor)


def share_of(batch: Batch, workers: Workers) -> Batch:
    """Return what a rank gets of a batch."""
    here = workers.share(len(batch.positives))
    parts = {name: getattr(batch, name)[here] for name in ("histories", "known")}
    return batch._replace(**parts)


def whole(state: TrainerState, batch: Batch) -> SampledInputs:
    return sample_inputs(state, batch, Workers())


def same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other is None or (one is not None and other is not None and torch.equal(one, other))


@pytest.mark.parametrize("read_out", ["last", "every"])
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"negatives": OWN, "loss": {"kind": "dpl", "extra_positives": 2}},
        {"negatives": BATCH, "loss": {"kind": "resampled_softmax", "cache": 8}},
    ],
    ids=["shared", "own", "cached"],
)
def test_padding_is_never_real_and_shares_make_the_whole(
    store: Store, prepare: Prepare, sections: dict[str, Any], read_out: str
) -> None:
    state = prepare(**sections)
    batch = last_batch(store, state)
    if read_out == "every":
        batch = every_position(batch)
        batch = batch._replace(real=batch.real & (batch.positives != PADDING))
    alone = sample_inputs(state, batch, Workers())
    assert torch.equal(alone.share.rows.positives, batch.positives[batch.real])
    for part in (alone.columns, alone.cached, alone.share.rows.own, alone.share.rows.extra_positives):
        assert part is None or not (part == PADDING).any()
    assert alone.pool.positives == int(batch.real.sum())
    for count in (2, 4):
        ranks = [Rank(rank, count, whole=batch) for rank in range(count)]
        dealt = [sample_inputs(state, share_of(batch, rank), rank) for rank in ranks]
        assert set(torch.cat([one.used for one in dealt]).tolist()) == set(alone.used.tolist())
        for one in dealt:
            # What is shared is the same.
            assert same(one.columns, alone.columns)
            assert same(one.cached, alone.cached)
            assert one.pool == alone.pool
        shares = [one.share for one in dealt]
        for parts, expected in zip(zip(*(share.rows for share in shares), strict=True), alone.share.rows, strict=True):
            assert same(None if parts[0] is None else torch.cat(parts), expected)
        assert torch.equal(torch.cat([share.histories for share in shares]), batch.histories)
        size = batch.positives.numel() // count
        offsets = [share.positions + rank * size for rank, share in enumerate(shares)]
        assert torch.equal(torch.cat(offsets), alone.share.positions)


def test_a_step_knows_all_rows_that_it_looks_up(store: Store, prepare: Prepare) -> None:
    state = prepare(negatives=OWN, loss={"kind": "dpl", "extra_positives": 2})
    batch = last_batch(store, state)
    one = sample_inputs(state, batch, Workers())
    rows = one.share.rows
    looked_up = [rows.positives, one.share.histories, rows.own, rows.extra_positives, one.columns, one.cached]
    given = [part.flatten() for part in looked_up if part is not None]
    assert len(given) == 5
    assert set(torch.cat(given).tolist()) <= set(one.used.tolist())


def test_extra_positives_are_known_positives(store: Store, prepare: Prepare) -> None:
    state = prepare(negatives=OWN, loss={"kind": "dpl", "extra_positives": 5})
    for batch in batches_of(store, state):
        rows = whole(state, batch).share.rows
        assert rows.extra_positives.shape == (len(rows.positives), 5)
        known = batch.known[batch.real]
        for positive, extra_positives, all_known in zip(
            *map(torch.Tensor.tolist, (*rows[:1], rows.extra_positives, known)), strict=True
        ):
            allowed = set(all_known) - {PADDING} or {positive}
            assert set(extra_positives) <= allowed


def test_an_only_positive_stands_for_itself(store: Store, prepare: Prepare) -> None:
    state = prepare(negatives=OWN, loss={"kind": "dpl", "extra_positives": 4})
    batch = last_batch(store, state)
    batch = batch._replace(known=torch.full_like(batch.known, PADDING))
    rows = whole(state, batch).share.rows
    assert torch.equal(rows.extra_positives, rows.positives[:, None].expand(-1, 4))


def test_extra_positives_of_every_position_are_those_of_its_history(store: Store, prepare: Prepare) -> None:
    state = prepare(negatives=OWN, loss={"kind": "dpl", "extra_positives": 3})
    batch = every_position(last_batch(store, state))
    share = whole(state, batch).share
    history = share.positions // batch.positives.shape[1]
    known = batch.known[history]
    assert (known != PADDING).any(1).all()
    assert (share.rows.extra_positives[:, :, None] == known[:, None, :]).any(2).all()
    assert torch.equal(share.rows.weights, batch.weights[history])


@pytest.mark.parametrize("candidates", [0, 1, 4])
def test_every_row_gets_its_candidates(store: Store, prepare: Prepare, candidates: int) -> None:
    state = prepare(negatives=OWN | {"bayesian_candidates": candidates}, loss={"kind": "bpr"})
    own = whole(state, last_batch(store, state)).share.rows.own
    assert own.shape == (11, 3 * max(candidates, 1))
    assert torch.isin(own, state.live).all()


@pytest.mark.parametrize("mask_history", [True, False])
def test_forbidden_are_the_positive_and_the_masked_history(store: Store, prepare: Prepare, mask_history: bool) -> None:
    state = prepare(negatives={"mask_history": mask_history})
    batch = last_batch(store, state)
    rows = whole(state, batch).share.rows
    wanted = [rows.positives[:, None], batch.known[batch.real]] if mask_history else [rows.positives[:, None]]
    assert torch.equal(rows.forbidden, torch.cat(wanted, 1))


def test_columns_are_the_pool_that_is_configured(store: Store, prepare: Prepare) -> None:
    state = prepare()
    batch = last_batch(store, state)
    columns = whole(state, batch).columns
    assert torch.equal(columns[:11], batch.positives[batch.real])
    assert len(columns) == 11 + state.config.negatives.uniform
    state = prepare(loss={"kind": "full_softmax"})
    assert torch.equal(whole(state, batch).columns, state.live)


def test_the_cache_takes_part_as_it_stands(store: Store, prepare: Prepare) -> None:
    state = prepare(negatives=BATCH, loss={"kind": "resampled_softmax", "cache": 8})
    assert state.cache is not None
    batch = last_batch(store, state)
    assert torch.equal(whole(state, batch).cached, state.cache.items)
    assert whole(prepare(), batch).cached is None


def test_draws_change_from_step_to_step_only(store: Store, prepare: Prepare) -> None:
    state = prepare()
    batch = last_batch(store, state)
    first = whole(state, batch).columns
    assert torch.equal(whole(state, batch).columns, first)
    state.position.step += 1
    assert not torch.equal(whole(state, batch).columns, first)


@pytest.mark.parametrize(
    ("sections", "built"),
    [
        ({}, {"columns", "forbidden"}),
        ({"loss": {"kind": "full_softmax"}}, {"columns", "forbidden"}),
        ({"negatives": OWN, "loss": {"kind": "bpr"}}, {"own"}),
        ({"negatives": OWN, "loss": {"kind": "dpl", "extra_positives": 2}}, {"columns", "own", "extra_positives"}),
        ({"negatives": BATCH, "loss": {"kind": "resampled_softmax", "cache": 8}}, {"columns", "cached"}),
        ({"negatives": BATCH, "loss": {"kind": "pointwise"}}, set()),
    ],
)
def test_only_what_the_loss_needs_is_drawn(
    store: Store, prepare: Prepare, sections: dict[str, Any], built: set[str]
) -> None:
    state = prepare(**sections)
    drawn = whole(state, last_batch(store, state))
    parts = {"columns": drawn.columns, "cached": drawn.cached}
    parts |= {name: getattr(drawn.share.rows, name) for name in ("own", "extra_positives", "forbidden")}
    assert {name for name, part in parts.items() if part is not None} == built


@pytest.mark.parametrize("mask_history", [True, False])
def test_what_a_user_is_known_to_like_is_no_negative_of_exposure(
    store: Store, writer: WindowWriter, config: TrainerConfig, *, mask_history: bool
) -> None:
    synthetic(writer, windows=1, events=75, exposed=4)
    negatives = config.negatives.model_copy(update={"exposed": 4, "mask_history": mask_history})
    state = absorbed(store, config.model_copy(update={"negatives": negatives}))
    batch = batches_of(store, state)[0]
    exposed = whole(state, batch).share.rows.exposed
    assert exposed is not None
    masked = 0
    for row, shown in enumerate(batch.exposed.tolist()):
        liked = {int(batch.positives[row]), *(batch.histories[row].tolist() if mask_history else [])}
        wanted = [PADDING if item in liked or item < FIRST_ITEM else item for item in shown]
        assert exposed[row].tolist() == wanted
        masked += wanted != shown
    assert 0 < masked < len(batch.positives)


def test_what_was_shown_has_a_part_in_the_step(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1, events=75, exposed=4)
    off = absorbed(store, config)
    assert whole(off, batches_of(store, off)[0]).share.rows.exposed is None
    on = absorbed(store, config.model_copy(update={"negatives": config.negatives.model_copy(update={"exposed": 4})}))
    sampled = whole(on, batches_of(store, on)[0])
    exposed = sampled.share.rows.exposed
    assert exposed is not None
    assert {*exposed.flatten().tolist()} <= {*sampled.used.tolist()}
