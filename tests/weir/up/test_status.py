""""""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.text import Text

from tests.weir.up.damage import DAMAGES, WINDOWS, whole_store
from weir.config import load_settings
from weir.contracts import BundleLog, CommitLog, Pin, Store, WindowLog
from weir.demo.generator import GeneratorConfig, generate
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.serving.client import RetrievalClient
from weir.up.status import Status, StatusDisplay, StatusReader


def test_counts_come_from_the_store_and_nothing_is_settled_before_it_is_served(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    made = generate(GeneratorConfig(users=20, items=40, events=500, days=2, malformed=0.02))
    (log / "log.jsonl").write_bytes(made.lines)
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    settings = load_settings(None, {"store": store.url, "pipeline": pipeline.model_dump()})
    with RetrievalClient("127.0.0.1:1", timeout=0.2) as client:
        reader = StatusReader(store, settings, client, 0.0, "anna-0")
        assert (reader.read().read, reader.read().last_sequence) == (0, -1)
        ingest(store, pipeline, registry=CollectorRegistry())
        status = reader.read()
        truth = made.truth
        assert (status.counts.events, status.dead, status.counts.duplicates) == (
            truth.events,
            truth.malformed,
            truth.duplicates,
        )
        assert status.read == truth.lines
        assert status.last_sequence == WindowLog(store).committed()[-1].sequence
        assert status.served is None
        assert not reader.is_settled(status)
        assert reader.is_all_committed()
        (log / "more.jsonl").write_bytes(made.lines)
        assert not reader.is_all_committed()


@pytest.fixture
def client() -> Iterator[RetrievalClient]:
    with RetrievalClient("127.0.0.1:1", timeout=0.2) as nobody:
        yield nobody


def reader_of(store: Store, client: RetrievalClient) -> StatusReader:
    return StatusReader(store, load_settings(None, {"store": store.url}), client, 0.0, "anna-0")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_part_is_named_and_the_others_are_still_seen(
    damage: Any, tmp_path: Path, client: RetrievalClient
) -> None:
    store = whole_store(str(tmp_path))
    name = damage(store)
    reader = reader_of(store, client)
    status = reader.read()
    assert [problem for problem in status.problems.values() if name in problem], status.problems
    assert len(status.problems) == 1
    seen = {
        "windows": status.windows == WINDOWS,
        "CURRENT": status.current == "00000000-0000000001",
        "bundles": status.trained_sequence == WINDOWS - 2,
        "monitor": len(status.recalls) == WINDOWS,
        "CLOCK.json": status.replayed == 1.0,
    }
    lost = {part for part, is_seen in seen.items() if not is_seen}
    # Which windows are to be measured follows from the windows.
    assert (
        lost
        == {
            "bundles/CURRENT": {"CURRENT"},
            "CLOCK.json": {"CLOCK.json"},
            "commits": {"windows", "monitor"},
            "bundles": {"bundles"},
            "monitor": {"monitor"},
        }[name if name in {"bundles/CURRENT", "CLOCK.json"} else name.split("/")[0]]
    )
    assert not reader.is_settled(status)


def test_what_was_seen_stays_until_it_can_be_read_again(tmp_path: Path, client: RetrievalClient) -> None:
    store = whole_store(str(tmp_path))
    reader = reader_of(store, client)
    before = reader.read()
    assert before.problems == {}
    good = store.read("CLOCK.json")
    store.write("CLOCK.json", b"\xff")
    assert reader.read().problems.keys() == {"CLOCK.json"}
    store.write("CLOCK.json", good)
    after = reader.read()
    assert (after.problems, after.windows, after.replayed) == ({}, WINDOWS, 1.0)


def test_a_bundle_that_is_retired_between_listing_and_reading_is_no_problem(
    tmp_path: Path, client: RetrievalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = whole_store(str(tmp_path))
    reader = reader_of(store, client)
    assert reader.read().trained_sequence == WINDOWS - 2
    listed = BundleLog.versions

    def then_retired(log: BundleLog) -> list[str]:
        found = [*listed(log), "00000000-0000000002"]
        store.remove("bundles/00000000-0000000002")
        return found

    monkeypatch.setattr(BundleLog, "versions", then_retired)
    status = reader.read()
    assert (status.problems, status.trained_sequence) == ({}, WINDOWS - 2)


def test_it_says_why_the_newest_bundle_is_not_served(tmp_path: Path, client: RetrievalClient) -> None:
    store = whole_store(str(tmp_path))
    reader, current = reader_of(store, client), "00000000-0000000001"
    assert reader.read().held is None
    BundleLog(store).set_pin(Pin(version=current, by="ann", at=0.0, why="a look at it"))
    assert reader.read().held == "pinned to 00000000-0000000001 by ann at 1970-01-01 00:00 UTC: a look at it"


def test_a_log_that_cannot_be_listed_is_not_settled(tmp_path: Path, client: RetrievalClient) -> None:
    store = whole_store(str(tmp_path / "store"))
    settings = load_settings(None, {"store": store.url, "pipeline": {"log": "nowhere://at/all"}})
    reader = StatusReader(store, settings, client, 0.0, None)
    reader.read()
    assert reader._state.attempt("log", reader.is_all_committed, otherwise=False) is False
    assert "nowhere" in reader.problems["log"]


def test_a_look_with_nothing_new_reads_the_same_in_a_young_and_in_an_old_store(
    tmp_path: Path, client: RetrievalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    read = Store.read

    def counted(store: Store, name: str) -> bytes:
        reads[name] += 1
        return read(store, name)

    found = []
    for windows in (3, 60):
        reader = reader_of(whole_store(str(tmp_path / str(windows)), windows), client)
        reader.read()
        reader.read()
        with monkeypatch.context() as patch:
            patch.setattr(Store, "read", counted)
            reads.clear()
            status = reader.read()
        assert status.windows == windows
        assert status.counts.events == 10 * windows
        found.append(sorted(name.replace(CommitLog.name(windows), "the next commit") for name in reads))
    assert found[0] == found[1] == ["CLOCK.json", "bundles/CURRENT", "bundles/PIN", "the next commit"]


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=160), file


def test_lines_of_processes_carry_their_names_and_survive_brackets() -> None:
    out, file = console(terminal=False)
    StatusDisplay(out).say("trainer", "WARNING [/red] odd [bold]text")
    assert file.getvalue() == " trainer | WARNING [/red] odd [bold]text\n"


def test_plain_lines_come_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = console(terminal=False)
    now = [100.0]
    monkeypatch.setattr("weir.up.status.time.monotonic", lambda: now[0])
    with StatusDisplay(out) as display:
        for seconds in (100.0, 101.0, 109.0, 111.0):
            now[0] = seconds
            display.show(Status(seconds=seconds, replayed=0.5))
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert "100 s; log: 0 events in 0 panes" in lines[0]
    assert "50% of the replay done" in lines[0]
    assert "served: nothing yet: waiting for the first window to end" in lines[0]


@pytest.mark.parametrize(
    ("status", "awaited"),
    [
        (
            Status(seconds=1.0, replayed=None, longest_seconds=19.0),
            "the first events, which are answered after 19.0 s at most",
        ),
        (Status(seconds=1.0, replayed=0.0), "the first window to end"),
        (Status(seconds=1.0, replayed=0.1, windows=1), "the trainer to make the first bundle"),
        (Status(seconds=1.0, replayed=0.1, windows=1, trained_sequence=0), "the server to load the first bundle"),
    ],
)
def test_what_is_awaited_until_the_first_answer_is_said(status: Status, awaited: str) -> None:
    out, file = console(terminal=False)
    StatusDisplay(out).show(status)
    assert f"served: nothing yet: waiting for {awaited};" in file.getvalue()


def test_a_terminal_gets_a_live_table() -> None:
    out, file = console(terminal=True)
    with StatusDisplay(out) as display:
        display.show(Status(seconds=3.0, replayed=0.25))
        display.say("server", "ready")
    shown = [line.strip() for line in Text.from_ansi(file.getvalue()).plain.splitlines()]
    assert "weir up, 3 s" in shown
    # Each fact has a line of its own, the bar too.
    assert [line.split()[0] for line in shown if line.startswith(("replay", "log", "trained"))][:3] == [
        "replay",
        "log",
        "trained",
    ]
    assert "ready" in file.getvalue()


def test_what_cannot_be_read_is_said_once_until_it_can_be_read_again() -> None:
    out, file = console(terminal=False)
    display = StatusDisplay(out)
    for problems in ({}, {"windows": "a.json: bad"}, {"windows": "a.json: bad"}, {}, {"windows": "a.json: bad"}):
        display.show(Status(seconds=1.0, replayed=None, problems=problems))
    assert file.getvalue().count("weir | cannot read: a.json: bad\n") == 2


def test_a_terminal_that_has_gone_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    # Rich sends the standard output of a program whose pipe has gone to nowhere.
    monkeypatch.setattr("os.dup2", lambda *files: None)
    for terminal in (False, True):
        display = StatusDisplay(Console(file=Gone(), width=160, force_terminal=terminal))
        display.say("trainer", "ready")
        display.show(Status(seconds=1.0, replayed=None))


def test_why_the_newest_bundle_is_not_served_is_shown() -> None:
    out, file = console(terminal=False)
    with StatusDisplay(out) as display:
        display.show(Status(seconds=1.0, replayed=None, held="held: recall@20 is 0.1, of the current bundle 0.4"))
    assert "newest bundle: held: recall@20 is 0.1, of the current bundle 0.4" in file.getvalue()
