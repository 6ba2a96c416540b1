"""Stores live, with random settings and commands; servers and monitors beside notice nothing, and nothing is lost."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts import BundleLog, Store
from contracts.verification import verify
from serving.client import RetrievalClient
from serving.monitor.results import recorded
from tests.campaigns import size
from tests.campaigns.life_beside import Load, settled, stage, weir
from tests.campaigns.life_truth import Written, check_bundles, check_events, check_users
from tests.campaigns.lives import ROOT
from tests.campaigns.store_lives import rebuild
from tests.campaigns.tally import NOTES, counting
from tests.ports import free_port

WINDOW_SECONDS = 200
"""Of the rebuilt store: none of those that lives have."""


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def whole(folder: Path, *arguments: str) -> None:
    """Run a command that nobody kills."""
    found = subprocess.run(weir(folder, *arguments), capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, f"{arguments} ended with {found.returncode}: {found.stderr}{found.stdout}"


@contextmanager
def lived(folder: Path, seed: int, commands: int) -> Iterator[None]:
    """Let a store live; waits for its first command, and for the last one in the end."""
    command = [sys.executable, "-m", "tests.campaigns.store_lives", str(folder), str(seed), str(commands)]
    life = subprocess.Popen(command, cwd=ROOT)
    try:
        settled((folder / "journal.jsonl").exists)
        yield
        assert life.wait(60 * commands) == 0
    finally:
        life.kill()


@contextmanager
def asked(load: Load) -> Iterator[None]:
    """Ask the server meanwhile; at least once."""
    asking = threading.Thread(target=load)
    asking.start()
    try:
        yield
        settled(lambda: load.versions)
    finally:
        load.done.set()
        asking.join()
    assert load.wrong == []


def finish(folder: Path, written: Written) -> None:
    """Do what is left to do, so that what is there does not depend on who was killed when."""
    whole(folder, "ingest")
    if written.forgotten:
        whole(folder, "forget", *(one for user in sorted(written.forgotten) for one in ("--user", user)))
    whole(folder, "promote", "--unpin")
    whole(folder, "train")
    whole(folder, "verify")
    whole(folder, *rebuild(str(folder / "store"), folder / "rebuilt", {"window_seconds": WINDOW_SECONDS}))


@pytest.mark.parametrize("seed", range(size.of(1, 20)))
def test_a_store_lives_and_nobody_beside_it_notices(tmp_path: Path, seed: int) -> None:
    store, port = Store(str(tmp_path / "store")), free_port()
    with counting("kills: commands of a store's life") as row, ExitStack() as beside:
        with lived(tmp_path, seed, size.of(12, 40)):
            settings = yaml.safe_load((tmp_path / "weir.yaml").read_text())
            down = settings.get("takedown")
            load = Load(port, down and Path(down), has_tags="catalogue" in settings)
            beside.enter_context(stage(tmp_path, "serve", "--port", str(port)))
            beside.enter_context(stage(tmp_path, "monitor", "--set", f"monitor.target=127.0.0.1:{port}"))
            beside.enter_context(asked(load))
        journal = read(tmp_path)
        for one in journal:
            # Who is asked to stop before anything was said has not listened yet.
            fine = {0, None} if one["said"] else {0, None, -signal.SIGTERM}
            assert one["status"] in fine, f"{one['command']} ended with {one['status']}: {one['said']}"
        commands = [one["command"][0] for one in journal]
        written = Written(journal[-1]["parts"], frozenset(journal[-1]["forgotten"]), "retire" in commands)
        finish(tmp_path, written)
        newest = BundleLog(store).current()
        with RetrievalClient(f"127.0.0.1:{port}") as client:
            settled(lambda: client.info().bundle_version == newest)
        settled(lambda: recorded(store))
        pipeline = settings["pipeline"]
        users = check_users(port, written, pipeline["history_length"] + pipeline["late_items"])
        events = check_events(store, written, pipeline["window_seconds"])
        assert check_events(Store(str(tmp_path / "rebuilt")), written, WINDOW_SECONDS) <= events
        bundles = check_bundles(store)
        assert verify(store).findings == []
        row.faults += sum(one["status"] is None for one in journal)
        row.without_effect = row.faults
    measured = [one.sequence for one in recorded(store)]
    assert measured == sorted(set(measured))
    NOTES.append(
        f"life {seed}: {len(journal)} commands, {events} events, {users} users, {bundles} bundles at the end, "
        f"{load.versions.total()} answers from {len(load.versions)}, {len(measured)} windows measured"
    )
