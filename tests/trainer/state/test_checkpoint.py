"""Checkpoints: chains that each rank reads, files of tensors, and states that are equal after saving and loading."""

import logging
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import CorruptArtefactError, Store
from weir.contracts.bundles.checkpoint import CheckpointRef, mark_path, read_checkpoint_chain, read_checkpoint_mark
from weir.contracts.storage.documents import write_document
from weir.contracts.verification import verify
from weir.trainer.items.ids import pack_ids, unpack_ids
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import RowSharding, TableRows, no_rows
from weir.trainer.items.shard_reader import OwnPlaces, OwnRowSharding, own_table
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state import tensor_files
from weir.trainer.state.checkpoint import CheckpointLog, CheckpointMismatchError, DamagedCheckpointError
from weir.trainer.state.checkpoint_chain import Layout, SavedChain, StoredLinks
from weir.trainer.state.tensor_files import Delta, describe, read_tensors, write_tensors
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step

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


DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    found = {}
    for number, (name, shape) in enumerate(draw(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES)))):
        values = torch.from_numpy(np.random.default_rng(number).standard_normal(shape))
        found[f"{number}.{name}"] = torch.as_tensor(values).to(DTYPES[name])
    return found


@given(wanted=tensors(), file_bytes=st.integers(1, 200))
def test_what_is_written_is_read_bit_for_bit_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, torch.Tensor], file_bytes: int
) -> None:
    store = Store(str(tmp_path_factory.mktemp("store")))
    files = write_tensors(store, "folder", wanted, file_bytes)
    assert all(file.size == file_bytes for file in files[:-1])
    found = read_tensors(store, "folder", describe(wanted), files)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_files_hold_plain_little_endian_numbers(store: Store) -> None:
    wanted = {"one": torch.tensor([1.5, -2.0]), "two": torch.tensor([[7], [-1]])}
    write_tensors(store, "folder", wanted)
    data = store.read("folder/tensors-00000.bin")
    assert np.frombuffer(data[:8], "<f4").tolist() == [1.5, -2.0]
    assert np.frombuffer(data[8:], "<i8").tolist() == [7, -1]


def test_what_is_not_contiguous_is_written_in_c_order(store: Store) -> None:
    wanted = {"turned": torch.arange(6).view(2, 3).T}
    found = read_tensors(store, "folder", describe(wanted), write_tensors(store, "folder", wanted))
    assert torch.equal(found["turned"], wanted["turned"])


def test_a_damaged_file_is_named(store: Store) -> None:
    wanted = {"one": torch.arange(100)}
    files = write_tensors(store, "folder", wanted, 256)
    store.write("folder/tensors-00002.bin", bytes(256))
    with pytest.raises(CorruptArtefactError, match="tensors-00002"):
        read_tensors(store, "folder", describe(wanted), files)


@given(ranks=st.integers(1, 4), width=st.integers(1, 3), file_bytes=st.integers(1, 200), by_place=st.booleans())
def test_a_rank_takes_its_lines_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, width: int, file_bytes: int, by_place: bool
) -> None:
    store = Store(str(tmp_path_factory.mktemp("store")))
    every = torch.arange(16)
    lines = torch.arange(16.0 * width).view(16, width)
    stored = lines[Places(16).rows(every)] if by_place else lines
    wanted = {"before": torch.arange(5), "lines": stored, "after": torch.arange(3)}
    files = write_tensors(store, "folder", wanted, file_bytes)
    for rank in range(ranks):
        places = Places(16, rank, ranks)
        own = {"lines": OwnPlaces(places, by_place)}
        found = read_tensors(store, "folder", describe(wanted), files, own)
        assert torch.equal(found["lines"], lines[places.rows_at(torch.arange(len(places.here)))])
        assert torch.equal(found["before"], wanted["before"])
        assert torch.equal(found["after"], wanted["after"])


IDS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=20)


@given(ids=IDS, ranks=st.integers(1, 4), file_bytes=st.integers(1, 200), at_once=st.integers(1, 30))
def test_a_rank_takes_its_items_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str | None], ranks: int, file_bytes: int, at_once: int
) -> None:
    store, keys = Store(str(tmp_path_factory.mktemp("store"))), np.arange(len(ids))
    sizes, data = pack_ids(np.array(ids, object))
    arrays = {"keys": keys, "seen_ms": keys * 7, "id_sizes": sizes, "id_bytes": data}
    wanted = {name: torch.from_numpy(one) for name, one in arrays.items()}
    files = write_tensors(store, "folder", wanted, file_bytes)
    for rank in range(ranks):
        with patch.object(tensor_files, "_AT_ONCE", at_once):
            own = own_table(OwnRowSharding(RowSharding(rank, ranks), len(ids)))
            found = read_tensors(store, "folder", describe(wanted), files, own)
        assert torch.equal(found["keys"], wanted["keys"][rank::ranks])
        assert torch.equal(found["seen_ms"], wanted["seen_ms"][rank::ranks])
        assert unpack_ids(found["id_sizes"].numpy(), found["id_bytes"].numpy()).tolist() == ids[rank::ranks]


def test_a_rank_reads_only_the_files_that_hold_its_lines(store: Store) -> None:
    wanted = {"lines": torch.arange(64.0)}
    files = write_tensors(store, "folder", wanted, 16)
    store.remove(f"folder/{files[0].name}")
    first, second = ({"lines": OwnPlaces(Places(64, rank, 2), by_place=True)} for rank in (0, 1))
    read_tensors(store, "folder", describe(wanted), files, second)
    with pytest.raises(CorruptArtefactError, match="tensors-00000"):
        read_tensors(store, "folder", describe(wanted), files, first)


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    train_step(state, batches_of(store, state)[0], Workers())
    return state


def test_what_is_saved_is_loaded_bit_for_bit(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    loaded = log.load(state.config, Workers())
    assert loaded is not None
    assert same_tensors(state.tensors(), loaded.tensors()) == []
    assert loaded.position == state.position


def test_a_fresh_state_can_be_saved_too(store: Store, config: TrainerConfig) -> None:
    CheckpointLog(store).save(TrainerState.fresh(config), Workers())
    loaded = CheckpointLog(store).load(config, Workers())
    assert loaded is not None
    assert loaded.frequencies.sketch is None


def test_the_last_two_are_kept_with_what_they_continue_and_ruins_are_cleared(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    names = []
    for batch in range(4):
        state.position.batch = batch
        names.append(log.save(state, Workers()))
        store.write("checkpoints/0000000000-ruin/tensors-00000.bin", b"half")
    assert log.names() == [names[0], *names[-2:]]
    log.save(state, Workers())
    state.position.batch = 9
    log.save(state, Workers())
    assert len(store.glob("checkpoints/*")) == 3
    # Nothing continues the first one once two whole ones have followed.
    for batch in (10, 11):
        state.embeddings.touched.mark(np.arange(state.table.capacity))
        state.position.batch = batch
        names.append(log.save(state, Workers()))
    assert log.names() == names[-2:]


def test_an_incomplete_checkpoint_is_never_loaded(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    first = state.position.step
    train_step(state, batches_of(store, state)[1], Workers())
    newest = log.save(state, Workers())
    # Killed before the last file: everything is there but the mark.
    store.remove(f"checkpoints/{newest}/CHECKPOINT.json")
    loaded = log.load(state.config, Workers())
    assert loaded is not None
    assert loaded.position.step == first
    assert log.save(state, Workers()) == newest
    again = log.load(state.config, Workers())
    assert again is not None
    assert torch.equal(again.embeddings.weight, state.embeddings.weight)


def test_without_a_checkpoint_there_is_no_state(store: Store, config: TrainerConfig) -> None:
    assert CheckpointLog(store).load(config, Workers()) is None


def test_other_settings_are_refused_by_name_with_both_values(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    plain = state.config.model_dump()
    plain["tower"]["dimension"] = 16
    plain["admit_after"] = 3.0
    with pytest.raises(CheckpointMismatchError) as error:
        log.load(TrainerConfig.model_validate(plain), Workers())
    assert "tower.dimension was 8 and is now 16" in str(error.value)
    assert "admit_after was 1.0 and is now 3.0" in str(error.value)
    assert "batch_size" not in str(error.value)
    free = TrainerConfig.model_validate({**state.config.model_dump(), "export_every_windows": 9, "metrics_port": 1})
    assert log.load(free, Workers()) is not None


def test_a_default_that_has_changed_leaves_a_store_as_it_is(
    store: Store, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    """The state's settings are given; a later version's user gives some of them, and its defaults are others."""
    log, workers = CheckpointLog(store), Workers()
    log.save(state, workers)
    assert state.config.tower.dimension != TrainerConfig().tower.dimension
    given = {"seed": state.config.seed, "tower": {"layers": state.config.tower.layers}}
    with caplog.at_level(logging.INFO):
        config = log.continued(TrainerConfig.model_validate(given), workers)
    assert config.defining() == state.config.defining()
    assert "tower.dimension is 8, as in the checkpoint: the default is 64 now" in caplog.messages
    loaded = log.load(config, workers)
    assert loaded is not None
    assert same_tensors(state.tensors(), loaded.tensors()) == []
    other = log.continued(TrainerConfig(tower=TowerConfig(layers=state.config.tower.layers + 1)), workers)
    with pytest.raises(CheckpointMismatchError, match=r"tower\.layers was"):
        log.load(other, workers)


def test_a_setting_that_came_later_is_refused_only_where_it_is_given(store: Store, state: TrainerState) -> None:
    log, workers = CheckpointLog(store), Workers()
    path = mark_path(log.save(state, workers))
    mark = read_checkpoint_mark(store, log.names()[-1])
    settings = {name: value for name, value in mark.settings.items() if name != "features.buckets"}
    write_document(store, path, mark.model_copy(update={"settings": settings}))
    plain = state.config.model_dump()
    plain.pop("features")
    config = log.continued(TrainerConfig.model_validate(plain), workers)
    assert log.load(config, workers) is not None
    given = log.continued(TrainerConfig.model_validate({**plain, "features": {"buckets": 8}}), workers)
    with pytest.raises(CheckpointMismatchError, match=r"features\.buckets was 'absent' and is now 8"):
        log.load(given, workers)


def test_without_a_checkpoint_settings_are_as_given(store: Store) -> None:
    config = TrainerConfig()
    assert CheckpointLog(store).continued(config, Workers()) is config


Damage = Callable[[Store, str, random.Random], str]
"""Harms a file of a folder and returns the file's name."""


def flip_a_bit(store: Store, folder: str, draw: random.Random) -> str:
    # Every file alike, however small: most bytes are parameters.
    name = draw.choice(store.glob(f"{folder}/*"))
    data = bytearray(store.read(name))
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    store.write(name, bytes(data))
    return name


def truncate(store: Store, folder: str, draw: random.Random) -> str:
    name = draw.choice(store.glob(f"{folder}/*"))
    data = store.read(name)
    store.write(name, data[: draw.randrange(len(data))])
    return name


def lose(store: Store, folder: str, draw: random.Random) -> str:
    name = draw.choice(store.glob(f"{folder}/*.bin"))
    store.remove(name)
    return name


def swap(store: Store, folder: str, draw: random.Random) -> str:
    # The last file is shorter: the others pass for each other by size.
    one, other = sorted(draw.sample(store.glob(f"{folder}/*.bin")[:-1], 2))
    data = store.read(one), store.read(other)
    store.write(one, data[1])
    store.write(other, data[0])
    return one


@pytest.mark.parametrize("share", [0.2, 1.0], ids=["delta", "whole"])
@pytest.mark.parametrize(("damage", "times"), [(flip_a_bit, 300), (truncate, 30), (lose, 5), (swap, 5)])
def test_every_damage_is_refused_with_the_name_of_the_file(
    store: Store, state: TrainerState, damage: Damage, times: int, share: float
) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    state.embeddings.touched.mark(np.arange(round(share * state.table.capacity)))
    state.position.batch += 1
    with pytest.MonkeyPatch.context() as patch:
        small = partial(write_tensors, file_bytes=1 << (14 if share == 1 else 12))
        patch.setattr("weir.trainer.state.checkpoint.write_tensors", small)
        folder = f"checkpoints/{log.save(state, Workers())}"
    assert (read_checkpoint_mark(store, folder.split("/")[1]).parent is None) == (share == 1)
    whole = {name: store.read(name) for name in store.glob(f"{folder}/*")}
    assert len(whole) > 4
    for seed in range(times):
        name = damage(store, folder, random.Random(seed))
        with pytest.raises(DamagedCheckpointError) as refusal:
            log.load(state.config, Workers())
        assert refusal.value.path == store.path(name), seed
        assert str(refusal.value).endswith(f"; remove {folder} to continue from the one before")
        assert "\n" not in str(refusal.value)
        restored(store, whole)
    assert log.load(state.config, Workers()) is not None
    # The remedy is one.
    damage(store, folder, random.Random(0))
    store.remove(folder)
    before = log.load(state.config, Workers())
    assert before is not None
    assert before.position.batch == state.position.batch - 1


def restored(store: Store, files: dict[str, bytes]) -> None:
    """Write files again that are not as they were."""
    for name, data in files.items():
        if not store.exists(name) or store.read(name) != data:
            store.write(name, data)


@pytest.mark.parametrize(("damage", "times"), [(flip_a_bit, 30), (truncate, 10), (lose, 3)])
def test_damage_to_what_others_continue_names_all_that_are_lost_with_it(
    store: Store, state: TrainerState, damage: Damage, times: int
) -> None:
    log, names = CheckpointLog(store, keep=4), []
    for batch in range(4):
        state.position.batch = batch
        if batch == 1:
            state.embeddings.touched.mark(np.arange(state.table.capacity))
        names.append(log.save(state, Workers()))
    folders = [f"checkpoints/{name}" for name in names]
    whole = {name: store.read(name) for name in store.glob("checkpoints/*/*")}
    for seed in range(times):
        name = damage(store, folders[1], random.Random(seed))
        with pytest.raises(DamagedCheckpointError) as refusal:
            log.load(state.config, Workers())
        assert refusal.value.path == store.path(name)
        assert str(refusal.value).endswith(f"; remove {' and '.join(folders[1:])} to continue from the one before")
        assert name in {finding.name for finding in verify(store).findings}
        restored(store, whole)
    for folder in folders[2:]:
        store.remove(folder)
    store.remove(folders[0])
    damage(store, folders[1], random.Random(0))
    with pytest.raises(DamagedCheckpointError, match=f"; remove {folders[1]}, and all windows are trained on again"):
        log.load(state.config, Workers())


@pytest.mark.parametrize("part", ["CHECKPOINT.json", ""], ids=["its mark", "all of it"])
def test_what_is_no_longer_there_is_not_continued(store: Store, state: TrainerState, part: str) -> None:
    log = CheckpointLog(store)
    first = log.save(state, Workers())
    store.remove(f"checkpoints/{first}/{part}".rstrip("/"))
    state.position.batch += 1
    assert read_checkpoint_mark(store, log.save(state, Workers())).parent is None
    # Nor is one of another store.
    other = Store(store.path("other"))
    state.position.batch += 1
    assert read_checkpoint_mark(other, CheckpointLog(other).save(state, Workers())).parent is None
    assert log.load(state.config, Workers()) is not None


def test_a_checkpoint_whose_beginning_was_removed_is_refused_with_what_to_do(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    names = []
    for batch in range(3):
        state.position.batch = batch
        names.append(log.save(state, Workers()))
    store.remove(f"checkpoints/{names[0]}")
    folders = [f"checkpoints/{name}" for name in names[1:]]
    with pytest.raises(DamagedCheckpointError) as refusal:
        log.load(state.config, Workers())
    assert str(refusal.value).endswith(f"; remove {' and '.join(folders)}, and all windows are trained on again")


class Planted:
    """Leaves a file behind wherever it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_a_planted_pickle_is_never_executed(store: Store, state: TrainerState, tmp_path: Path) -> None:
    log, trace = CheckpointLog(store), tmp_path / "executed"
    folder = f"checkpoints/{log.save(state, Workers())}"
    bomb = pickle.dumps(Planted(trace))
    pickle.loads(bomb)  # noqa: S301 - to show that it would be seen
    assert trace.exists()
    trace.unlink()
    # Beside what is read; loading looks at neither.
    for name in (".metadata", "__0_0.distcp"):
        store.write(f"{folder}/{name}", bomb)
    assert log.load(state.config, Workers()) is not None
    mark = read_checkpoint_mark(store, folder.split("/")[1])
    sized = bomb + bytes(mark.files[0].size - len(bomb))
    entry = store.write(f"{folder}/{mark.files[0].name}", sized)
    with pytest.raises(DamagedCheckpointError):
        log.load(state.config, Workers())
    # A writer who also forges the mark changes parameters, and still runs nothing.
    write_document(store, f"{folder}/CHECKPOINT.json", mark.model_copy(update={"files": (entry, *mark.files[1:])}))
    with suppress(Exception):
        log.load(state.config, Workers())
    assert not trace.exists()


@pytest.mark.parametrize("number", [5, 8])
def test_another_format_is_refused_and_not_taken_for_damage(store: Store, state: TrainerState, number: int) -> None:
    log = CheckpointLog(store)
    path = mark_path(log.save(state, Workers()))
    mark = read_checkpoint_mark(store, log.names()[-1])
    write_document(store, path, mark.model_copy(update={"format": number}))
    with pytest.raises(CheckpointMismatchError, match=f"has format {number}"):
        log.load(state.config, Workers())
    assert log.continued(state.config, Workers()) is state.config


def test_the_same_store_by_url_holds_checkpoints_too(state: TrainerState) -> None:
    # No local path: what an object store offers, and nothing else.
    remote = Store("memory://checkpoints-of-a-test")
    log = CheckpointLog(remote)
    log.save(state, Workers())
    loaded = log.load(state.config, Workers())
    assert loaded is not None
    assert same_tensors(state.tensors(), loaded.tensors()) == []
