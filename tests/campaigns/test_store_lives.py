"""Stores live, with random settings and commands; servers and monitors beside notice nothing, and nothing is lost."""

import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.hunter import IS_LONG, NOTES, Row, counting, size_of
from tests.campaigns.life_beside import Beside, Load, asking, settings_in, settled, weir
from tests.campaigns.life_log import Written, check_bundles, check_events, check_users, write_part
from tests.campaigns.life_move import rebuild
from tests.campaigns.life_settings import Plan, settings_of
from tests.campaigns.lives import ROOT
from tests.integration.kafka_broker import Broker
from tests.integration.object_store import bucket
from tests.pipelines.sources.kafka.support import new_topic
from weir.contracts import BundleLog, Store
from weir.contracts.verification import verify
from weir.serving.client import RetrievalClient
from weir.serving.monitor.results import recorded

WINDOW_SECONDS = 200
"""Of the rebuilt store: none of those that lives have."""
SEEDS = range(20) if IS_LONG else [2]
"""The one of the short form has a store that moves within twelve commands, unless kills come at other moments."""


@pytest.mark.timeout(size_of(300, 1200))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_lives_and_nobody_beside_it_notices(tmp_path: Path, seed: int) -> None:
    with counting("kills: commands of a store's life") as row:
        check_life(Plan(tmp_path, str(tmp_path / "store"), files(tmp_path), seed, size_of(12, 40)), row)


@pytest.mark.skipif(not IS_LONG, reason="in the long form; a life on disk is there in both")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(size_of(1, 5)))
def test_a_store_lives_on_an_object_store(tmp_path: Path, seed: int) -> None:
    with bucket(tmp_path / "minio/data") as url, counting("kills: commands of a life on an object store") as row:
        check_life(Plan(tmp_path, f"{url}/store", files(tmp_path), 100 + seed, 25), row)


@pytest.mark.skipif(not IS_LONG, reason="in the long form; a life with files is there in both")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(size_of(1, 10)))
def test_a_store_lives_with_a_topic(tmp_path: Path, broker: Broker, seed: int) -> None:
    with counting("kills: commands of a life with a topic") as row:
        check_life(Plan(tmp_path, str(tmp_path / "store"), broker.url(new_topic(broker, 3)), 200 + seed, 40), row)


def files(folder: Path) -> str:
    """Return a folder for the files of a log."""
    (folder / "log").mkdir()
    return str(folder / "log")


def check_life(plan: Plan, row: Row) -> None:
    """Let a store live, count the commands that were killed, and see that nothing is lost."""
    folder, load = plan.folder, Load.drawn(settings_of(plan))
    with closing(Beside(folder, load)) as beside:
        with asking(load):
            live(plan, beside)
        ended, killed = check_ends(folder)
        store, written = Store(beside.store), finish(folder, Store(beside.store))
        newest = BundleLog(store).current()
        with RetrievalClient(f"127.0.0.1:{load.port}") as client:
            settled(lambda: client.info().bundle_version == newest)
        pipeline = settings_in(folder)["pipeline"]
        users = check_users(load.port, written, pipeline["history_length"] + pipeline["late_items"])
        events = check_events(store, written, pipeline["window_seconds"])
        assert check_events(rebuilt(folder, store), written.rebuilt(store), WINDOW_SECONDS) <= events
        bundles = check_bundles(store)
        assert verify(store).findings == []
        row.faults += killed
        row.without_effect = row.faults
    measured = [one.sequence for one in recorded(store)]
    assert measured == sorted(set(measured))
    NOTES.append(
        f"life {plan.seed}: {ended} commands, {events} events, {users} users, {bundles} bundles at the end, "
        f"{load.versions.total()} answers from {len(load.versions)}, {len(measured)} windows measured, "
        f"{beside.moves} moves"
    )


def live(plan: Plan, beside: Beside) -> None:
    """Let a store live, and what runs beside it follow where it moves."""
    life = subprocess.Popen([sys.executable, "-m", "tests.campaigns.store_lives", *plan.arguments()], cwd=ROOT)
    try:
        settled((plan.folder / "journal.jsonl").exists)
        while life.poll() is None:
            beside.follow()
            time.sleep(0.1)
        beside.follow()
        assert life.wait() == 0
    finally:
        life.kill()


def check_ends(folder: Path) -> tuple[int, int]:
    """All commands ended as they may; returns how many there were, and how many were killed."""
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for one in journal:
        assert ended_well(one), f"{one['command']} ended with {one['status']}: {one['said']}"
    return len(journal), sum(one["status"] is None for one in journal)


def ended_well(one: dict[str, Any]) -> bool:
    """Say whether a command did what it had to, was killed, or said why another one has to come first."""
    if one["status"] == -signal.SIGTERM:  # asked to stop before it listened
        return not one["said"] or (one["command"][0] == "train" and "all ranks have started" not in one["said"])
    if one["status"] == 1:
        has_moved = one["command"][:2] == ["ingest", "--follow"] and "has moved to" in one["said"]
        return has_moved or ("--cut-over" in one["command"] and "run it again" in one["said"])
    return one["status"] in {0, None}


def finish(folder: Path, store: Store) -> Written:
    """Do what is left to do, so that what is there does not depend on who was killed when; returns what was written."""
    done = json.loads((folder / "done.json").read_text())
    written = Written(done["parts"] + 1, frozenset(done["forgotten"]), done["retired"], done["since"])
    write_part(settings_in(folder)["pipeline"]["log"], done["parts"])
    whole(folder, "ingest")
    settled(lambda: recorded(store))
    if written.forgotten:
        whole(folder, "forget", *(one for user in sorted(written.forgotten) for one in ("--user", user)))
    whole(folder, "promote", "--unpin")
    whole(folder, "train")
    whole(folder, "verify")
    return written


def rebuilt(folder: Path, store: Store) -> Store:
    """Return a store of the same windows under other settings."""
    found = Store(f"{store.url}-rebuilt")
    whole(folder, *rebuild(store.url, found.url, {"window_seconds": WINDOW_SECONDS}))
    return found


def whole(folder: Path, *arguments: str) -> None:
    """Run a command that nobody kills."""
    found = subprocess.run(weir(folder, *arguments), capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, f"{arguments} ended with {found.returncode}: {found.stderr}{found.stdout}"
