"""A rebuild is killed at random moments, while it follows and while it cuts over; every event is there exactly once."""

import subprocess
import sys
from pathlib import Path

from tests.campaigns import size
from tests.campaigns.ingest_lives import events_of
from tests.campaigns.lives import ROOT
from tests.campaigns.rebuild_lives import WINDOW_SECONDS, parts
from tests.campaigns.tally import counting
from tests.pipelines import support
from weir.contracts import LogState, Store
from weir.contracts.verification import verify


def test_killed_again_and_again_a_rebuild_holds_every_event_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with counting("kills: rebuild") as row:
        kills = size.of(4, 40)
        _, row.faults = parts(kills)
        command = [sys.executable, "-m", "tests.campaigns.rebuild_lives", str(tmp_path), "1", str(kills)]
        subprocess.run(command, check=True, cwd=ROOT)
        store = Store(str(tmp_path / "store"))
        events = [event for part in range(row.faults) for event in events_of(part)]
        assert support.stored_events(store) == support.expected_events(events, WINDOW_SECONDS)
        support.check_counts(store)
        support.check_histories(store, 5)
        assert LogState.open(store).moved_from == str(tmp_path.resolve() / "origin")
        assert verify(store).findings == []
        row.without_effect = row.faults
