"""A following ingest is killed at random moments, again and again; every event is committed exactly once."""

import subprocess
import sys
from pathlib import Path

from tests.campaigns import committed_once, size
from tests.campaigns.ingest_lives import WHOLE, settings
from tests.campaigns.lives import ROOT
from tests.campaigns.tally import counting
from weir.contracts import CommitLog, Store


def test_killed_again_and_again_every_event_is_committed_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with counting("kills: ingest") as row:
        row.faults = size.of(24, 40)
        command = [sys.executable, "-m", "tests.campaigns.ingest_lives", str(tmp_path), "1", str(row.faults)]
        subprocess.run(command, check=True, cwd=ROOT)
        store = Store(str(tmp_path / "store"))
        committed_once.check(store, range(row.faults + WHOLE), settings(tmp_path).history_length)
        log = CommitLog(store)
        commits = [log.get(number) for number in range(log.newest() + 1)]
        assert any(file.replaces for commit in commits for file in commit.histories), "no merge was committed"
        assert (tmp_path / "killed").read_text(), "no life was killed within a run: the test has not tested that"
        row.without_effect = row.faults
