import errno
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import grpc
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from weir.cli.terminal.command import DEBUGGING, command, explain, set_up_logging
from weir.config import SettingsError
from weir.contracts import CorruptArtefactError, StoreFormatError, UnfitStoreError
from weir.errors import CommandError, UsageError
from weir.pipelines.runs.run_registry import BusyStoreError
from weir.serving.client import RetrievalError
from weir.trainer.export import ExportError
from weir.trainer.state.checkpoint import CheckpointMismatchError, DamagedCheckpointError

RUNNER = CliRunner()


@dataclass(frozen=True)
class Shared:
    """A group of options."""

    place: Annotated[str, typer.Option()]
    size: Annotated[int, typer.Option()] = 2


def app_of(seen: list[object], error: BaseException | None = None) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @command
    def run(name: str, *, shared: Shared, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        seen.append((name, shared, loud, DEBUGGING.get()))
        if error is not None:
            raise error

    return app


def test_a_group_becomes_options_and_arrives_as_one_object() -> None:
    seen: list[object] = []
    for arguments in (["a", "--place", "x"], ["b", "--place", "y", "--size", "7", "--loud", "--debug"]):
        assert RUNNER.invoke(app_of(seen), arguments).exit_code == 0
    assert seen == [("a", Shared("x", 2), False, False), ("b", Shared("y", 7), True, True)]


def test_options_without_a_default_are_required_and_defaults_are_shown() -> None:
    assert RUNNER.invoke(app_of([]), ["a"]).exit_code == 2
    shown = RUNNER.invoke(app_of([]), ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "[default: 2]" in shown
    order = [shown.index(option) for option in ("--place", "--size", "--loud", "--debug")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CommandError("no\x1b[1m"), 1, "weir: no\\x1b[1m\n"),
        (UsageError("no"), 2, "weir: no\n"),
        (typer.Exit(7), 7, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_exit_statuses(error: BaseException, status: int, line: str) -> None:
    result = RUNNER.invoke(app_of([], error), ["a", "--place", "x"])
    assert (result.exit_code, result.stderr) == (status, line)


@pytest.mark.parametrize(("error", "arguments"), [(RuntimeError("odd"), []), (CommandError("no"), ["--debug"])])
def test_other_errors_and_debugging_keep_the_traceback(error: Exception, arguments: list[str]) -> None:
    result = RUNNER.invoke(app_of([], error), ["a", "--place", "x", *arguments])
    assert result.exception is error


INVALID = grpc.StatusCode.INVALID_ARGUMENT
CLEAR = [
    *(BusyStoreError, CheckpointMismatchError, ExportError, StoreFormatError, UnfitStoreError),
    *(CommandError, OSError, PermissionError),
]


@pytest.mark.parametrize("kind", CLEAR)
def test_a_message_that_says_it_all_is_the_line(kind: type[Exception]) -> None:
    assert explain(kind("what to do")) == (["what to do"], 1)


@pytest.mark.parametrize("number", sorted({*errno.errorcode} - {errno.EADDRINUSE}))
@pytest.mark.parametrize("path", ["/a/file", None])
def test_an_error_of_the_system_is_one_line_with_its_file(number: int, path: str | None) -> None:
    [line], status = explain(OSError(number, os.strerror(number), path)) or ([], 0)
    assert status == 1
    assert os.strerror(number) in line
    assert path is None or path in line


def test_what_to_do_depends_on_the_error_of_the_system() -> None:
    common = ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE", "EACCES", "EPERM", "EROFS", "EIO", "ENOMEM", "ENOENT")
    steps = {}
    for name in common:
        number = getattr(errno, name)
        [line], _ = explain(OSError(number, os.strerror(number), "/a/file")) or ([], 0)
        start = f"/a/file: {os.strerror(number)}: "
        assert line.startswith(start)
        steps[name] = line.removeprefix(start)
    assert steps["EACCES"] == steps["EPERM"]
    assert len(set(steps.values())) == len(common) - 1


@pytest.mark.parametrize("debug", [False, True])
def test_a_record_of_an_error_of_the_system_is_a_line_too(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    token = DEBUGGING.set(debug)
    set_up_logging(Console(file=sys.stderr, force_terminal=False))
    DEBUGGING.reset(token)
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/file")
    except OSError:
        logging.getLogger("weir.test").exception("cannot export; training continues")
    told = capsys.readouterr().err
    assert ("Traceback" in told) is debug
    assert debug or "training continues: /a/file: No space left on device: free space and run it again" in told


def test_a_damaged_file_gets_a_hint_unless_its_error_has_one() -> None:
    assert explain(CorruptArtefactError("f", "cut")) == (
        ["f: cut; restore it from a copy; without one, start with another --store"],
        1,
    )
    assert explain(DamagedCheckpointError("f", "cut, remove it")) == (["f: cut, remove it"], 1)


def test_wrong_usage_has_a_status_of_its_own() -> None:
    assert explain(UsageError("no")) == (["no"], 2)
    assert explain(SettingsError(["a = 1: no", "b = 2: no"])) == (
        ["these settings cannot be used:", "  a = 1: no", "  b = 2: no"],
        2,
    )


def test_refusals_name_their_fields_and_silence_names_the_way_to_a_server() -> None:
    refused = RetrievalError(INVALID, "bad", "INVALID", {"queries[0].k": "is 0"})
    assert explain(refused) == (
        ["the server refused: INVALID_ARGUMENT (INVALID): bad", "  queries[0].k: is 0"],
        1,
    )
    silent = explain(RetrievalError(grpc.StatusCode.UNAVAILABLE, "nobody"))
    assert silent is not None
    start = "start one with `weir up` or `weir serve`, or name it with --target"
    assert silent[0] == [f"no server answers: {start}; if it speaks TLS, set `client` (UNAVAILABLE: nobody)"]
    warming = explain(RetrievalError(grpc.StatusCode.UNAVAILABLE, "no bundle", "NO_BUNDLE"))
    assert warming is not None
    assert warming[0] == ["the server refused: UNAVAILABLE (NO_BUNDLE): no bundle"]


def test_errors_of_libraries_get_a_way_out() -> None:
    assert explain(ModuleNotFoundError(name="faiss")) == (
        ["the module faiss is missing: install it with `pip install 'weir-retrieval[cpu]'`"],
        1,
    )
    assert explain(ImportError("Install s3fs to access S3")) == (
        ["Install s3fs to access S3 (with .venv/bin/pip or where weir is installed)"],
        1,
    )
    assert explain(ValueError("one\n  two")) == (["one; two (--debug shows where)"], 1)


@pytest.mark.parametrize(
    ("module", "hidden", "extras"),
    [
        ("weir.serving.bundles.bundle", "onnxruntime", "serving,cpu"),
        ("weir.trainer.export.servable", "onnxruntime", "trainer,cpu"),
        ("weir.serving.monitor.loop", "grpc", "serving,cpu"),
        ("weir.trainer.offline.report.look", "matplotlib", "bench"),
        ("weir.age_report", "matplotlib", "bench"),
        ("weir.pipelines.sources.kafka.avro", "fastavro", "avro"),
    ],
)
def test_a_missing_module_names_the_extras_that_bring_it(module: str, hidden: str, extras: str) -> None:
    code = f"""
import importlib, sys
from weir.cli.terminal.command import explain
sys.modules[{hidden!r}] = None
try:
    importlib.import_module({module!r})
except ModuleNotFoundError as error:
    print(explain(error)[0][0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"the module {hidden} is missing: install it with `pip install 'weir-retrieval[{extras}]'`\n"


def test_where_there_is_no_fcntl_the_command_says_what_weir_runs_on(tmp_path: Path) -> None:
    """Windows has none."""
    code = "import sys; sys.modules['fcntl'] = None; from weir.cli.main import main; main()"
    command = [sys.executable, "-c", code, "up", "--demo", "--store", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "weir: weir runs on Linux; on Windows use WSL or a container\n")


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError(name="unknown"), ImportError("no"), RuntimeError("x"), KeyError()]
)
def test_other_errors_are_not_explained(error: Exception) -> None:
    assert explain(error) is None
