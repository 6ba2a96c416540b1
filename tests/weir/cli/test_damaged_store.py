"""Commands on a store with one damaged file: one line that names the file, or no effect; never a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from tests.serving.process import ServerProcess
from tests.weir.up.damage import COMMITS, whole_store
from weir.cli.main import app
from weir.contracts import Store

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
