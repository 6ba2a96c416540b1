"""What each of several ranks reads of a chain, without starting any."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.support import absorbed, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import CorruptArtefactError, Store
from weir.contracts.bundles.checkpoint import CheckpointRef, read_checkpoint_chain
from weir.trainer.items.ids import unpack_ids
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.checkpoint_chain import Layout, SavedChain, StoredLinks
from weir.trainer.state.tensor_files import Delta
from weir.trainer.state.trainer_state import TrainerState

LISTED = list(range(1, 100, 3)), list(range(2, 12))


@pytest.fixture
def saved(store: Store, writer: WindowWriter, config: TrainerConfig) -> tuple[TrainerState, str]:
    """A state, and its checkpoint: a whole one and two deltas."""
    synthetic(writer, windows=1)
    state, log = absorbed(store, config), CheckpointLog(store)
    log.save(state, Workers())
    for rows in LISTED:
        state.embeddings.weight[rows] += 1
        state.embeddings.touch(torch.tensor(rows))
        state.position.batch += 1
        name = log.save(state, Workers())
    return state, name


def links_of(store: Store, name: str, rank: int, ranks: int) -> StoredLinks:
    return StoredLinks(store, tuple(read_checkpoint_chain(store, name)), Workers(rank, ranks))


@pytest.mark.parametrize("ranks", [1, 3])
def test_each_rank_reads_its_own_lines_of_a_delta(store: Store, saved: tuple[TrainerState, str], ranks: int) -> None:
    state, name = saved
    for rank in range(ranks):
        links, places = links_of(store, name, rank, ranks), Places(state.table.capacity, rank, ranks)
        assert [listed.tolist() for listed in links.listed] == list(LISTED)
        *_, delta = links.deltas()
        every = torch.tensor(LISTED[1])
        placed = every[places.own(every)]
        striped = TableRows(np.array([row for row in LISTED[1] if row % ranks == rank]))
        assert delta.rows("embeddings").tolist() == delta.rows("counts").tolist() == placed.tolist()
        assert delta.rows("table").tolist() == striped.tolist()
        assert delta.rows("cache").tolist() == LISTED[1]
        found = delta.tensors
        assert torch.equal(found["embeddings.weight"], state.embeddings.weight[placed])
        assert torch.equal(found["counts.units"], state.counts.kept.units[placed])
        assert found["table.keys"].tolist() == state.table.keys[striped].tolist()
        ids = unpack_ids(found["table.id_sizes"].numpy(), found["table.id_bytes"].numpy())
        assert ids.tolist() == state.table.ids.of(striped).tolist()


def test_a_delta_is_let_go_before_the_next_is_read(store: Store, saved: tuple[TrainerState, str]) -> None:
    state, name = saved

    def emptied(deltas: Iterator[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            assert delta.tensors
            yield delta
            assert not delta.tensors

    links = links_of(store, name, 0, 1)
    other = TrainerState.restore(state.config, links.whole(), torch.device("cpu"), emptied(links.deltas()))
    assert same_tensors(state.tensors(), other.tensors()) == []


def test_every_rank_refuses_a_damaged_delta_alike(store: Store, saved: tuple[TrainerState, str]) -> None:
    _, name = saved
    damaged = f"checkpoints/{name}/tensors-00000.bin"
    data = store.read(damaged)
    store.write(damaged, data[:-1] + bytes([data[-1] ^ 1]))
    for rank in range(3):
        with pytest.raises(CorruptArtefactError) as refusal:
            list(links_of(store, name, rank, 3).deltas())
        assert refusal.value.path == store.path(damaged)


LAYOUT = Layout(400, {})
WINDOWS = st.lists(st.sets(st.integers(0, 399), max_size=30), max_size=40)


def named(number: int) -> CheckpointRef:
    return CheckpointRef(name=str(number), checksum="")


@given(WINDOWS)
def test_a_chain_holds_every_row_since_the_whole_one_and_is_short(windows: list[set[int]]) -> None:
    whole = SavedChain(LAYOUT, ()).extended(named(0), no_rows())
    chain, since = whole, set[int]()
    for number, touched in enumerate(windows, start=1):
        since |= touched
        found = chain.continued(LAYOUT, np.array(sorted(touched), np.int64))
        if found is None:
            # Repeated rows count: there are never more than three times as many as rows.
            assert len(since) > 100 / 3
            chain, since = whole, set()
            continue
        chain = found[0].extended(named(number), found[1])
        deltas = [link.rows for link in chain.links[1:]]
        assert set(np.concatenate(deltas).tolist()) == since
        sizes = [len(rows) for rows in deltas]
        assert sum(sizes) <= 100
        assert all(earlier > 2 * later for earlier, later in pairwise(sizes))
        assert set(deltas[-1].tolist()) >= touched


def test_windows_that_touch_the_same_rows_make_one_delta() -> None:
    chain = SavedChain(LAYOUT, ()).extended(named(0), no_rows())
    for number in range(1, 50):
        found = chain.continued(LAYOUT, np.arange(60))
        assert found is not None
        chain = found[0].extended(named(number), found[1])
        assert [link.checkpoint.name for link in chain.links] == ["0", str(number)]


def test_another_layout_is_not_continued() -> None:
    chain = SavedChain(LAYOUT, ()).extended(named(0), no_rows())
    assert chain.continued(Layout(800, {}), np.arange(3)) is None
    assert chain.continued(LAYOUT, np.arange(3)) is not None
