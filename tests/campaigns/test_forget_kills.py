"""A redaction is killed again and again, beside a pipeline; who is forgotten is gone, everybody else is there once."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.campaigns import committed_once, size
from tests.campaigns.forget_lives import FORGOTTEN
from tests.campaigns.ingest_lives import WINDOW_SECONDS, events_of, settings
from tests.campaigns.lives import ROOT
from tests.campaigns.tally import counting
from tests.pipelines import support
from weir.contracts import CommitLog, Store, WindowLog
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure_check import sightings
from weir.pipelines.runs.run_registry import sweep


def test_killed_again_and_again_only_the_forgotten_are_gone(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with counting("kills: forget") as row:
        row.faults = size.of(6, 40)
        command = [sys.executable, "-m", "tests.campaigns.forget_lives", str(tmp_path), "1", str(row.faults)]
        subprocess.run(command, check=True, cwd=ROOT)
        store = Store(str(tmp_path / "store"))
        events = [event for part in range(row.faults) for event in events_of(part) if event.user not in FORGOTTEN]
        assert support.stored_events(store) == support.expected_events(events, WINDOW_SECONDS)
        memory = defaultdict[int, list[tuple[int, int]]](list)
        for pane in WindowLog(store):
            for one in WindowLog(store).all_examples(pane).to_pylist():
                if one["label"] == 1:
                    memory[one["user_key"]].append((one["timestamp"], one["item_key"]))
        support.check_users(store, settings(tmp_path).history_length, memory)
        committed_once.check_commits(store)
        assert sum(CommitLog(store).get(n).forgets > 0 for n in range(CommitLog(store).newest() + 1)) > 1
        sweep(store, grace_seconds=0)
        assert committed_once.leftovers(store) == []
        # The log itself is its owner's to redact; what is in hand of a pipeline was swept away.
        assert sightings(store, Forgotten.of(FORGOTTEN)) == []
        row.without_effect = row.faults
