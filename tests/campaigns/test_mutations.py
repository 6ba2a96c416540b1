"""Every kind of file of a store is damaged, again and again; each damage is refused by name, or without any effect.

The oracle is the whole store: for each reader, what it made of it. Of a damaged one it either gives the very same
answer, or says which file is at fault, in an error of the kinds below or in its log.
"""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.campaigns import real_store
from tests.campaigns.damage import Mutation, linked_copy, mutate
from tests.campaigns.hunter import Row, counting, size_of
from tests.campaigns.readers import Readers, listening
from tests.pipelines import support
from tests.serving.process import ServerProcess
from weir.contracts import CorruptArtefactError, Store
from weir.contracts.storage.format import StoreFormatError
from weir.contracts.verification import verify
from weir.trainer.state.checkpoint import CheckpointMismatchError

SEED: Final = 20

REFUSALS: Final = (CorruptArtefactError, StoreFormatError, CheckpointMismatchError)

KINDS: Final = {
    "format": ("STORE.json", "pipeline train serve monitor inspect"),
    "settings": ("SETTINGS.json", "pipeline"),
    "head": ("commits/HEAD", "pipeline train serve monitor inspect"),
    "snapshot": ("commits/snapshot-*.json", "pipeline serve"),
    "commit": ("commits/0*.json", "pipeline train serve monitor inspect"),
    "examples": ("windows/*/examples-*.parquet", "train monitor"),
    "items": ("windows/*/items.parquet", "train monitor"),
    "sketch": ("windows/*/sketch.bin", "train"),
    "user sketch": ("windows/*/user-sketch.bin", "train"),
    "dead letters": ("dead-letters/*", "pipeline"),
    "histories": ("histories/*", "pipeline serve"),
    "item keys": ("state/item-keys", "pipeline"),
    "popularity": ("state/popularity", "monitor"),
    "compacted manifest": ("bundles/*/complete/MANIFEST.json", "serve train inspect"),
    "compacted files": ("bundles/*/complete/*", "serve train"),
    "bundle manifest": ("bundles/*/MANIFEST.json", "serve train monitor inspect"),
    "bundle files": ("bundles/*/*.[fponz]*", "serve train"),
    "withdrawal": ("bundles/*/VERDICT.json", "train inspect"),
    "trial": ("bundles/TRIAL.json", "train"),
    "promoted": ("bundles/CURRENT", "serve train monitor inspect"),
    "pin": ("bundles/PIN", "serve train inspect"),
    "checkpoint mark": ("checkpoints/*/CHECKPOINT.json", "train"),
    "checkpoint files": ("checkpoints/*/*", "train"),
    "evaluation": ("evaluations/*", "train"),
    "measured": ("monitor/*", "monitor"),
    "clock": ("CLOCK.json", "clock"),
    "served lists": ("served/*", "attribution"),
}
"""Kind -> the names of its files, and the readers that read them. The first kind that fits a name is its kind."""

_NUMBERS = count()

UNCHECKED: Final = {
    "state/runs/*": "the outcome of a run, for the process that made it: no other reads it, sweep removes it",
}
"""Files that are not damaged here, and why."""


@dataclass(frozen=True)
class Whole:
    """The undamaged store, what readers make of it, and its files by kind."""

    folder: Path
    readers: Readers
    answers: dict[str, Any]
    kinds: dict[str, list[str]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("campaign")
    store = real_store.build(folder)
    shutil.copytree(folder / "log", folder / "longer/log")
    support.write_lines(folder / "longer/log/events.jsonl", real_store.round_of(real_store.ROUNDS))
    kinds = _by_kind(real_store.files(store))
    served = linked_copy(folder / "store", folder / "served")
    with ServerProcess(served) as server:
        server.said("serving bundle")
        readers, answers = Readers(folder, server.target), {}
        for name in {reader for _, names in KINDS.values() for reader in names.split()} | {"ingest"}:
            copy = linked_copy(folder / "store", folder / f"whole-{name}")
            answers[name] = getattr(readers, name)(copy)
        yield Whole(folder, readers, answers, kinds)


def _by_kind(names: list[str]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name in names:
        found = [kind for kind, (pattern, _) in KINDS.items() if fnmatchcase(name, pattern)]
        unchecked = any(fnmatchcase(name, pattern) for pattern in UNCHECKED)
        assert found or unchecked, f"{name} is of a kind that no mutation is made of: add it to KINDS"
        if not unchecked:
            kinds[found[0]].append(name)
    return kinds


def test_the_store_holds_every_kind_of_file(whole: Whole) -> None:
    assert [kind for kind, names in whole.kinds.items() if not names] == []
    assert whole.answers["serve"][1][0][0], "the server recommends something"
    assert verify(Store(str(whole.folder / "store"))).findings == []


ABSENT: Final = (
    "commits/HEAD",
    "commits/snapshot-*.json",
    "bundles/*/VERDICT.json",
    "bundles/PIN",
    "bundles/*/complete/MANIFEST.json",
    "monitor/PLACE.json",
    "served/*",
    "state/*",
    "CLOCK.json",
)
"""Files that nothing implies: docs/store.md says what comes of it where one is missing."""


def test_every_file_that_is_missing_is_named_or_documented_as_one_that_may_be(whole: Whole) -> None:
    folder, silent = whole.folder / "missing", list[str]()
    store = Store(str(shutil.copytree(whole.folder / "store", folder)))
    for name in real_store.files(store):
        # What no document lists is work in progress while it is young.
        _make_older(folder / name)
    for name in real_store.files(store):
        shutil.move(folder / name, whole.folder / "taken")
        try:
            found = {finding.name for finding in verify(store, quick=True).findings}
        except REFUSALS as error:
            found = {name} if name in str(error) else set()
        # Where a mark or manifest is missing the other files of its folder are named.
        beside = {one for one in found if one.startswith(f"{Path(name).parent}/") and name.count("/") > 1}
        if not ({name} & found or beside or any(fnmatchcase(name, pattern) for pattern in ABSENT)):
            silent.append(name)
        shutil.move(whole.folder / "taken", folder / name)
    assert silent == []
    text = (Path(__file__).parents[2] / "docs/store.md").read_text()
    assert [pattern for pattern in ABSENT if f"`{pattern}`" not in text] == []


def _make_older(path: Path) -> None:
    written = path.stat().st_mtime - 7200
    os.utime(path, (written, written))


def check(whole: Whole, kind: str, reader: str, rng: random.Random, row: Row) -> None:
    """Damage a file, let `verify` and one reader look at it, and count what came of it."""
    # A new place each time: what a process remembers of a store, it remembers by its address.
    folder = whole.folder / f"damaged-{next(_NUMBERS)}"
    store = linked_copy(whole.folder / "store", folder)
    try:
        names = whole.kinds[kind]
        # The newest files of a kind are those that most readers read.
        name = rng.choice(names[len(names) // 2 :] if rng.random() < 0.7 else names)
        mutation = mutate(store, name, names, rng)
        row.faults += 1
        row.silent += _verified(store, mutation)
        _read(whole, store, reader, mutation, row)
    finally:
        shutil.rmtree(folder)


def _verified(store: Store, mutation: Mutation) -> list[str]:
    try:
        found = {finding.name for finding in verify(store).findings}
    except REFUSALS as error:
        found = {name for name in mutation.names if name in str(error)}
    return [f"{mutation.how}: verify does not name {name}" for name in mutation.names if name not in found]


def _read(whole: Whole, store: Store, reader: str, mutation: Mutation, row: Row) -> None:
    with listening() as told:
        try:
            answer = getattr(whole.readers, reader)(store)
        except REFUSALS as error:
            told.texts.append(str(error))
            answer = error
        except Exception as error:  # noqa: BLE001 - what must not happen is counted, and the campaign goes on
            row.silent.append(f"{mutation.how}: {reader} fails with {type(error).__name__}: {error}"[:600])
            return
    if answer == whole.answers[reader]:
        row.without_effect += 1
    elif told.names_one_of(mutation.names):
        row.refused += 1
    else:
        row.silent.append(f"{mutation.how}: {reader} says nothing, or not where: {answer!r}"[:600])


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_by_name_or_without_effect(whole: Whole, kind: str) -> None:
    readers = KINDS[kind][1].split()
    rng = random.Random(f"{SEED} {kind}")
    with counting(f"mutations: {kind}") as row:
        for number in range(size_of(7, 54)):
            check(whole, kind, readers[number % len(readers)], rng, row)
    assert row.silent == []


@pytest.mark.parametrize("kind", ["head", "snapshot", "commit", "dead letters", "histories", "item keys"])
def test_a_whole_run_on_a_damaged_store_commits_the_same_or_nothing(whole: Whole, kind: str) -> None:
    rng = random.Random(f"{SEED} {kind} run")
    with counting(f"runs after mutations: {kind}") as row:
        for _ in range(size_of(1, 8)):
            check(whole, kind, "ingest", rng, row)
    assert row.silent == []
