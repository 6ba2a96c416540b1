"""``weir forget``, ``verify --absent``, ``rebuild`` and ``retire`` as a user types them; commands on damaged stores."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from tests.pipelines import aging, redacting, support
from tests.readers.files import ORIGIN, Event, write_lines
from tests.serving.process import ServerProcess
from tests.weir.cli.interactions import refused, told, weir
from tests.weir.up.damage import COMMITS, whole_store
from weir.cli.main import app
from weir.contracts import CommitLog, LogState, Store, WindowLog, read_format
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.retention_horizon import MonitorPlace
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import open_files_of
from weir.pipelines.sources.source import MovedStoreError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    redacting.build(tmp_path, parts=2)
    return tmp_path


def test_it_forgets_and_proves_it(folder: Path) -> None:
    store = ("--store", folder / "store")
    file = folder / "users.txt"
    file.write_text("user-2\r\n\nnobody\n")
    shown = weir("forget", *store, "--user", "user-1", "--users", file)
    assert shown.exit_code == 0, shown.output
    assert "nothing held of nobody" in shown.stdout
    assert "forgot 2 of 3 users by commit 2" in shown.stdout
    assert "they go in 86,400 s, by the pipeline or the next `weir forget`" in shown.stdout
    assert weir("verify", *store).exit_code == 0
    seen = weir("verify", *store, "--absent", "user-1")
    assert seen.exit_code == 1
    assert "waits for its removal (pipeline.erasure_days)" in seen.stdout
    assert "present: windows/" in seen.stdout
    again = told(weir("forget", *store, "--user", "user-1", "--grace", "0s", "--json"))
    assert (again["held"], again["commit"], again["waiting"]) == ([], None, 0)
    assert again["removed"] > 3
    proof = weir("verify", *store, "--absent", "user-1", "--absent", "user-2")
    assert proof.exit_code == 0, proof.output
    assert "no file holds user-1, user-2" in proof.stdout
    other = weir("verify", *store, "--absent", "user-3", "--json")
    assert other.exit_code == 1
    assert '"present"' in other.stdout


def test_nothing_is_held(folder: Path) -> None:
    before = CommitLog(Store(str(folder / "store"))).newest()
    shown = weir("forget", "--store", folder / "store", "--user", "nobody")
    assert (shown.exit_code, shown.stdout) == (0, "nothing held of nobody\n")
    assert CommitLog(Store(str(folder / "store"))).newest() == before


def test_events_of_open_windows_are_told(folder: Path) -> None:
    store = Store(str(folder / "store"))
    redacting.arrive(folder, 2)
    support.run(store, redacting.settings(folder), flush=False, only_whole_lines=True)
    users = redacting.forgotten(folder, ["user-1"])
    assert open_files_of(store, users.keys) != []
    assert open_files_of(store, redacting.forgotten(folder, ["nobody"]).keys) == []
    shown = weir("forget", "--store", folder / "store", "--user", "user-1")
    assert "not forgotten: events in windows that are still open" in shown.stdout
    assert LogState.open(store).redaction >= 0


def test_it_says_what_it_needs(folder: Path, tmp_path: Path) -> None:
    store = ("--store", folder / "store")
    assert "name the users to forget: --user ID" in refused(weir("forget", *store), 2)
    assert "--user is empty" in refused(weir("forget", *store, "--user", ""), 2)
    (tmp_path / "none").write_text("\n")
    assert "name the users to forget" in refused(weir("forget", *store, "--users", tmp_path / "none"), 2)
    (tmp_path / "odd").write_bytes(b"\xff\n")
    assert "is not UTF-8" in refused(weir("forget", *store, "--users", tmp_path / "odd"), 2)
    assert "missing.txt" in refused(weir("forget", *store, "--users", tmp_path / "missing.txt"), 1)
    assert "--grace is 'soon', but must be" in refused(weir("forget", *store, "--user", "a", "--grace", "soon"), 2)
    assert "there is no such store" in refused(weir("forget", "--store", tmp_path / "no", "--user", "a"), 1)


EVENTS = [Event(f"user-{number % 5}", f"item-{number % 11}", 40 * number) for number in range(60)]


def bring_in(store: Path, **changes: Any) -> int:
    """Ingest the log beside a store, and return the number of events."""
    settings = {"user_shards": 3, "sketch": {"kind": "exact"}, "history_length": 7, "metrics_port": 0}
    config = PipelineConfig.model_validate({"log": str(store.parent / "log"), **settings, **changes})
    return ingest(Store(str(store)), config, registry=CollectorRegistry()).valid


@pytest.fixture
def old(tmp_path: Path) -> Path:
    write_lines(tmp_path / "log/a.jsonl", [event.line() for event in EVENTS])
    assert bring_in(tmp_path / "old", window_seconds=600) == 60
    return tmp_path / "old"


def layout(store: Path) -> Any:
    found = read_format(Store(str(store)))
    assert found is not None
    assert found.layout is not None
    return found.layout.model_dump()


def starts(store: Path) -> list[int]:
    return [start // 1000 for start in LogState.open(Store(str(store))).starts]


def test_what_is_not_set_stays_and_the_log_goes_on_after_the_cut_over(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    given = ["--from", old, "--to", new, "--set", "pipeline.window_seconds=1200"]
    done = told(weir("rebuild", *given, "--json"))
    assert (done["valid"], done["moved"]) == (60, False)
    assert layout(new) == layout(old) | {"window_ms": 1_200_000}
    assert starts(new) == sorted({(ORIGIN + event.second) // 1200 * 1200 for event in EVENTS})
    with pytest.raises(MovedStoreError, match="is being rebuilt"):
        bring_in(new, window_seconds=1200)
    said = weir("rebuild", *given, "--cut-over")
    assert said.exit_code == 0, said.output
    assert f"{old} has ended: run the pipeline, trainer and servers with --store {new}" in " ".join(said.stdout.split())
    with pytest.raises(MovedStoreError, match=f"has moved to {new}"):
        bring_in(old, window_seconds=600)
    write_lines(tmp_path / "log/a.jsonl", [Event("user-1", "item-1", 3000).line()])
    assert bring_in(new, window_seconds=1200) == 1
    [first, *_] = WindowLog(Store(str(new))).committed()
    assert first.history_length == 7
    assert json.loads(weir("verify", "--store", new, "--json").stdout)["findings"] == []


def test_user_features_stay_unless_the_settings_name_others(tmp_path: Path) -> None:
    write_lines(tmp_path / "log/a.jsonl", [Event("ann", f"i{number}", number, price=1.5).line() for number in range(9)])
    bring_in(tmp_path / "old", user_features={"dense": ["price"]})
    others = 'pipeline.user_features={"categorical": ["genre"], "dense": []}'
    for name, more in (("same", []), ("other", ["--set", others])):
        told(weir("rebuild", "--from", tmp_path / "old", "--to", tmp_path / name, *more, "--json"))
    found = {name: WindowLog(Store(str(tmp_path / name))).committed() for name in ("old", "same", "other")}
    assert [one.user_features.dense for one in found["old"]] == [{"price": (9.0, 1.5, 0.0)}]
    assert [one.user_features for one in found["same"]] == [one.user_features for one in found["old"]]
    assert [one.user_features.names.all for one in found["other"]] == [("genre",)]


def test_a_log_can_be_replayed_instead(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    given = ["--from", old, "--to", new, "--log", tmp_path / "log", "--set", "pipeline.window_seconds=300"]
    assert told(weir("rebuild", *given, "--json"))["valid"] == 60
    assert told(weir("rebuild", *given, "--cut-over", "--json"))["moved"]
    assert starts(new) == sorted({(ORIGIN + event.second) // 300 * 300 for event in EVENTS})
    assert LogState.open(Store(str(old))).moved_to == str(new)


def test_wrong_usage_is_told_in_a_line(tmp_path: Path) -> None:
    given = ["--from", tmp_path / "none", "--to", tmp_path / "new"]
    assert "there is no store to rebuild" in refused(weir("rebuild", *given), 1)
    assert "end the process that follows" in refused(weir("rebuild", *given, "--follow", "--cut-over"), 2)


OPTIONS = ("--set", "pipeline.window_seconds=10", "--set", "pipeline.allowed_lateness_seconds=0")


@pytest.fixture
def aged_folder(tmp_path: Path) -> Path:
    for number in range(5):
        aging.arrive(tmp_path, number)
        ingest(Store(str(tmp_path / "store")), aging.settings(tmp_path), registry=aging.CollectorRegistry())
    return tmp_path


def retire(aged_folder: Path, *more: str) -> tuple[str, ...]:
    return (
        "retire",
        "--store",
        str(aged_folder / "store"),
        "--set",
        f"pipeline.log={aged_folder / 'log'}",
        *OPTIONS,
        *more,
    )


def test_it_retires_and_removes_after_the_grace(aged_folder: Path) -> None:
    store = Store(str(aged_folder / "store"))
    MonitorPlace(measured=0, counted=0).write(store)
    shown = told(weir(*retire(aged_folder, "--older-than", "20s", "--dry-run", "--json")))
    assert (shown["dry_run"], shown["retired"]["windows"], shown["held_back"]) == (True, 1, 1)
    assert [hold["reader"] for hold in shown["holds"]] == ["monitor"]
    assert LogState.open(store).horizon is None
    result = weir(*retire(aged_folder, "--older-than", "20s"))
    assert result.exit_code == 0, result.output
    assert "1 window in 1 pane " in result.stdout
    assert "monitor: not measured" in result.stdout
    assert "the pipeline or the next `weir retire`" in result.stdout
    MonitorPlace(measured=4, counted=4).write(store)
    # Within the grace nothing more retires: its files would have to wait again.
    waiting = told(weir(*retire(aged_folder, "--older-than", "20s", "--json")))
    assert (waiting["waiting_commits"], waiting["removed_commits"]) == (1, 0)
    assert CommitLog(store).next(Cursor()) is not None
    told(weir(*retire(aged_folder, "--older-than", "20s", "--grace", "0s", "--json")))
    assert [pane.sequence for pane in WindowLog(store)] == [2, 3, 4]
    assert store.glob("commits/000000000[01].json") == []
    MonitorPlace().write(store)  # nothing was measured here
    assert weir("verify", "--store", aged_folder / "store").exit_code == 0
    windows = told(weir("inspect", "windows", "--store", aged_folder / "store", "--json"))
    assert [window["sequence"] for window in windows] == [2, 3, 4]


def test_where_a_topic_cannot_be_listed_nothing_of_it_is_forgotten(aged_folder: Path) -> None:
    away = ("--set", "pipeline.log=kafka://127.0.0.1:1/clicks", "--set", "pipeline.kafka.timeout_seconds=0.2")
    MonitorPlace(measured=4, counted=4).write(Store(str(aged_folder / "store")))
    before = LogState.open(Store(str(aged_folder / "store"))).sources
    shown = told(weir(*retire(aged_folder, "--older-than", "20s", "--json"), *away))
    assert shown["retired"]["windows"] == 2
    assert LogState.open(Store(str(aged_folder / "store"))).sources.keys() == before.keys()


def test_retire_says_what_it_needs(aged_folder: Path) -> None:
    assert "give --older-than, or set pipeline.retention_days" in refused(weir(*retire(aged_folder)), 2)
    assert "--older-than is '3 weeks', but must be" in refused(weir(*retire(aged_folder, "--older-than", "3 weeks")), 2)
    assert "but windows stay open for 10 s" in refused(weir(*retire(aged_folder, "--older-than", "5s")), 2)
    assert "there is no such store" in refused(weir(*retire(aged_folder / "nothing", "--older-than", "5d")), 1)


RUNNER = CliRunner()
NOBODY: Final = "127.0.0.1:1"
REMEMBERED: Final = "state/settings.json"

DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "cut": lambda data: data[: len(data) // 2],
    "a byte": lambda data: data[:10] + bytes([data[10] ^ 0xFF]) + data[11:],
    "empty": lambda data: b"",
    "garbage": lambda data: b"\x00\xff not what was here \x80",
}
JSON_DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "a list": lambda data: b"[1, 2]",
    "no sections": lambda data: b'{"serving": 3}',
    "deep": lambda data: b"[" * 100_000,
}
FILES: Final = {
    "windows/*/*/items.parquet": ["inspect sketch", "inspect sketch FOLDER"],
    "windows/*/*/sketch.bin": ["inspect sketch", "inspect sketch FOLDER"],
    COMMITS: ["inspect windows", "inspect sketch"],
    "CLOCK.json": ["click anna jazz --no-wait"],
    REMEMBERED: [
        *("inspect windows", "inspect bundles", "inspect sketch", "config show", "config check", "export"),
        *("query anna", "click anna jazz --no-wait", "ingest", "train", "serve", "promote 00000000-0000000001"),
    ],
}
"""Kind of file -> the commands that read it before all else."""


def damages(pattern: str) -> dict[str, Callable[[bytes], bytes]]:
    return DAMAGES | (JSON_DAMAGES if pattern.endswith(".json") else {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "store"
    whole_store(str(folder)).write(REMEMBERED, b'{"serving": {"port": 7}}')
    return folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Store:
    shutil.copytree(whole, tmp_path / "store")
    (tmp_path / "log").mkdir()
    return Store(str(tmp_path / "store"))


def run(command: str, store: Store, *more: str) -> tuple[int, str, BaseException | None]:
    log = str(Path(store.url).parent / "log")
    ports = [f"{section}.metrics_port=0" for section in ("pipeline", "trainer", "serving", "monitor")]
    settings = [part for pair in (f"pipeline.log={log}", *ports) for part in ("--set", pair)]
    found = RUNNER.invoke(app, [*command.split(), *more, "--store", store.url, *settings], env={"COLUMNS": "300"})
    return found.exit_code, found.stderr, found.exception


@pytest.mark.parametrize(("pattern", "damage"), [(pattern, damage) for pattern in FILES for damage in damages(pattern)])
def test_a_damaged_file_is_named_in_one_line(pattern: str, damage: str, store: Store) -> None:
    name = store.glob(pattern)[-1]
    store.write(name, damages(pattern)[damage](store.read(name)))
    for command in FILES[pattern]:
        folder = Path(store.path(store.glob(pattern)[-1])).parent
        status, told, exception = run(command.replace("FOLDER", str(folder)), store)
        assert (status, type(exception)) in {(1, SystemExit), (2, SystemExit)}, (command, exception)
        lines = [line for line in told.splitlines() if line.startswith("weir: ")]
        assert len(lines) == 1, (command, told)
        assert name in told, (command, told)
        assert "Traceback" not in told


def test_settings_that_are_remembered_wrongly_name_their_file(store: Store) -> None:
    """Well-formed, but not to be used: all problems, and where they come from."""
    store.write(REMEMBERED, json.dumps({"serving": {"port": -1}, "trainer": {"batch_sise": 3}}).encode())
    status, told, _ = run("config show", store)
    assert status == 2
    assert told.count(f"(remembered in {store.path(REMEMBERED)})") == 2


def test_an_answer_that_cannot_be_explained_from_the_store_is_told_in_one_line(store: Store, tmp_path: Path) -> None:
    """The server answers; the client's copy of the store is damaged."""
    served = Store(str(tmp_path / "served"))
    shutil.copytree(store.url, served.url)
    with ServerProcess(served) as server:
        target = ["--target", server.target]
        assert run("query anna", store, *target)[0] == 0
        for pattern in ("CLOCK.json", "bundles/*/items.parquet", "bundles/*/MANIFEST.json"):
            for number, (label, damage) in enumerate(DAMAGES.items()):
                copy = Store(str(tmp_path / f"{pattern[:5]}-{pattern[-5:]}-{number}"))
                shutil.copytree(store.url, copy.url)
                name = copy.glob(pattern)[-1]
                copy.write(name, damage(copy.read(name)))
                status, told, exception = run("query anna", copy, *target)
                assert (status, type(exception)) == (1, SystemExit), (label, exception)
                assert told.count("\n") == 1, told
                assert name in told


@pytest.mark.parametrize("damage", ["cut", "a byte"])
@pytest.mark.parametrize("kind", ["items.parquet", "sketch.bin", "examples-00000.parquet"])
def test_training_names_the_damaged_file_of_a_window(kind: str, damage: str, store: Store) -> None:
    name = store.glob(f"windows/*/*/{kind}")[0]
    store.write(name, DAMAGES[damage](store.read(name)))
    status, told, exception = run("train", store)
    assert (status, type(exception)) == (1, SystemExit), exception
    lines = [line for line in told.splitlines() if line.startswith("weir: ")]
    assert len(lines) == 1, told
    assert name in lines[0]
    assert "Traceback" not in told
