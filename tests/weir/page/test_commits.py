import json
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.pipelines import redacting
from weir.contracts import EventClock, Store, WindowLog
from weir.page.commits import NewestCommits
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest


def write(log: Path, part: int) -> None:
    """Add ten events of ten minutes, and a broken line."""
    lines = [
        json.dumps({"user_id": "ann", "item_id": f"i{n}", "timestamp": 1_700_000_000 + 6000 * part + 60 * n})
        for n in range(10)
    ]
    (log / f"part-{part}.jsonl").write_text("\n".join([*lines, f'{{"user_id": "ann", broken {part}']) + "\n")


def test_commits_are_taken_in_as_they_come_and_all_at_once_alike(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    followed, blind = NewestCommits(store, lines=True), NewestCommits(store, lines=False)
    assert followed.catch_up() == []
    for part in range(3):
        write(log, part)
        ingest(store, pipeline, registry=CollectorRegistry())
        new = followed.catch_up()
        assert new == WindowLog(store).committed()[-len(new) :]
        assert followed.catch_up() == []
        blind.catch_up()
        fresh = NewestCommits(store, lines=True)
        fresh.catch_up()
        assert (fresh.state, fresh.panes, fresh.letters) == (followed.state, followed.panes, followed.letters)
        assert [f"broken {at}" in letter["raw"] for at, letter in enumerate(followed.letters)] == [True] * (part + 1)
    assert followed.state.counts.events == 30
    assert followed.state.dead == 3
    assert not blind.letters
    last = followed.panes[-1]
    assert followed.committed_at(last.sequence) == last.committed_at
    assert followed.committed_at(last.sequence + 1) is None
    seconds = followed.seconds_to_commit(EventClock.of(store))
    assert seconds is not None
    assert seconds > 0


def test_lines_are_no_longer_shown_once_a_user_is_forgotten(tmp_path: Path) -> None:
    redacting.build(tmp_path)
    followed = NewestCommits(redacting.store_of(tmp_path), lines=True)
    followed.catch_up()
    assert any(redacting.user(1) in letter["raw"] for letter in followed.letters)
    redacting.forget(tmp_path, [redacting.user(1)])
    followed.catch_up()
    fresh = NewestCommits(redacting.store_of(tmp_path), lines=True)
    fresh.catch_up()
    for shown in (followed, fresh):
        assert not any(redacting.user(1) in letter["raw"] for letter in shown.letters)
