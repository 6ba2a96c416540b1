import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.contracts.panes import a_pane
from weir.cli.main import app
from weir.config import Settings
from weir.contracts import CommitLog, Store, WindowLog
from weir.contracts.storage.locks import locked
from weir.up.ports import PORTS

RUNNER = CliRunner()

COMMANDS = [
    *(
        "check",
        "init",
        "up",
        "query",
        "click",
        "ingest",
        "retry",
        "stream",
        "train",
        "train-worker",
        "export",
        "promote",
        "serve",
        "histories",
    ),
    *(
        "monitor",
        "verify",
        "retire",
        "settings",
        "forget",
        "rebuild",
        "replay-bundle",
        "replay-worker",
        "generate",
        "produce",
        "replay",
        "evaluate",
        "bench losses",
        "bench step",
        "data movielens",
    ),
    *(
        "inspect windows",
        "inspect bundles",
        "inspect age",
        "inspect served",
        "inspect variants",
        "inspect sketch",
        "config show",
        "config check",
        "config schema",
    ),
]
WITHOUT_SETTINGS = {"generate", "data movielens", "config schema"}
WITHOUT_STORE = {"evaluate", "bench losses", "rebuild"}
ARGUMENTS = {
    "check": ["log.jsonl"],
    "init": ["log.jsonl"],
    "evaluate": ["--data", "log.jsonl"],
    "bench losses": ["--data", "log.jsonl"],
    "data movielens": ["ml-1m"],
    "query": ["anna-0"],
    "forget": ["--user", "anna-0"],
    "promote": ["00000000-0000000001"],
    "click": ["anna-0", "jazz-000"],
    "replay": ["log.jsonl"],
    "rebuild": ["--from", "old", "--to", "new"],
    "replay-bundle": ["00000000-0000000001-00000000"],
    "replay-worker": ["00000000-0000000001-00000000", "--result", "result.json"],
}


def run(*arguments: str, status: int = 0) -> str:
    result = RUNNER.invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == status, result.output + (repr(result.exception) if result.exception else "")
    return result.output


def run_json(*arguments: str) -> Any:
    """Return what a command prints on standard output; log lines stand on standard error."""
    result = RUNNER.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", text))


def test_the_list_of_commands_is_complete() -> None:
    found = {command.name for command in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        found |= {f"{group.name} {command.name}" for command in group.typer_instance.registered_commands}
    assert found == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option_and_names_defaults(command: str) -> None:
    text = plain(run(*command.split(), "--help"))
    assert "Usage:" in text
    if command not in WITHOUT_SETTINGS:
        assert "--config" in text
        assert ("[default: (weir-data)]" in text) == (command not in WITHOUT_STORE)
    for option in ("--seconds", "--k", "--ranks", "--last", "--port", "--events"):
        if f" {option} " in text:
            assert re.search(rf"{option} .*?\[default:", text), option


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in WITHOUT_SETTINGS])
def test_an_unknown_key_is_named_before_any_work(command: str, tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text("trainer: {batch_sise: 3}\n")
    arguments = [*ARGUMENTS.get(command, []), "--config", str(file)]
    if command not in WITHOUT_STORE:
        arguments += ["--store", str(tmp_path / "store")]
    output = run(*command.split(), *arguments, status=2)
    assert "trainer.batch_sise: there is no such setting; did you mean batch_size?" in output
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_wrong_usage(command: str) -> None:
    assert "--nonsense" in run(*command.split(), *ARGUMENTS.get(command, []), "--nonsense", status=2)


def test_defaults_shown_in_help_are_those_of_the_settings() -> None:
    settings = Settings()
    assert "[default: (50051)]" in plain(run("serve", "--help"))
    assert settings.serving.port == 50051
    assert settings.serving.host == "127.0.0.1"
    assert settings.pipeline.log == "log"
    assert settings.store == "weir-data"


def test_help_comes_without_importing_any_stage() -> None:
    code = (
        "import sys, weir.cli.main\n"
        "print(sorted({'torch', 'apache_beam', 'grpc', 'pyarrow', 'pydantic'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_reader_of_the_output_may_leave(tmp_path: Path) -> None:
    """`weir check LOG | head -1` prints no error."""
    log = tmp_path / "log.csv"
    log.write_text("user_id,item_id,timestamp\n" + "".join(f"u{n},i{n},{1_764_000_000 + n}\n" for n in range(9)))
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "weir", "check", str(log), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=60)
        assert (process.returncode, told) == (1, b"")


def test_ids_of_any_language_are_printed_in_any_locale(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("user_id,item_id,timestamp\n" + "".join(f"ü{n},ラ{n},{1_764_000_000 + n}\n" for n in range(9)))
    command = [sys.executable, "-m", "weir", "check", str(log)]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=os.environ | locale, capture_output=True, check=True)
    assert "ü0" in done.stdout.decode()
    assert "ラ0" in done.stdout.decode()


def test_python_m_weir_is_the_same_command() -> None:
    found = subprocess.run([sys.executable, "-m", "weir", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("weir 0.")


def test_processes_of_a_command_import_this_weir(tmp_path: Path) -> None:
    """Not from the folder that it starts in, unless weir itself lies there."""
    code = "import atexit, os; atexit.register(lambda: print(os.environ.get('PYTHONSAFEPATH')))\n"
    code += "import sys; sys.argv = ['weir', '--version']; from weir.cli.main import main; main()"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("PYTHONSAFEPATH", None)
    for folder, expected in ((tmp_path, "1"), (root, "None")):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[1:] == [expected]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    for name in [
        name for name in sys.modules if name.startswith("weir.pipelines.") and name != "weir.pipelines.config"
    ]:
        monkeypatch.delitem(sys.modules, name)
    output = run("ingest", "--store", str(tmp_path), status=1)
    assert output.strip().splitlines()[-1] == (
        "weir: the module apache_beam is missing: install it with `pip install 'weir-retrieval[pipeline]'`"
    )


def test_no_server_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{probe.getsockname()[1]}"
        output = run("query", "anna-0", "--target", target, "--store", str(tmp_path), status=1)
    assert output.startswith("weir: no server answers: start one with `weir up` or `weir serve`")
    assert len(output.strip().splitlines()) == 1


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        free = ["pipeline.metrics_port=0", "trainer.metrics_port=0", "serving.metrics_port=0", "monitor.metrics_port=0"]
        settings = [part for pair in (f"serving.port={port}", *free) for part in ("--set", pair)]
        output = run("up", "--demo", "--store", str(tmp_path / "store"), *settings, status=1)
    assert f"port {port} (gRPC, serving.port) is in use" in output
    assert not (tmp_path / "store" / "logs").exists()


def test_once_never_removes_what_no_demo_made(tmp_path: Path) -> None:
    Store(str(tmp_path)).write("precious/data", b"1")
    ports = [part for key in ("serving.port", "pipeline.metrics_port", "trainer.metrics_port", "serving.metrics_port",
                              "monitor.metrics_port") for part in ("--set", f"{key}=0")]  # fmt: skip
    output = run("up", "--demo", "--once", "--store", str(tmp_path), *ports, status=1)
    assert "holds other data, which is no replay alone" in output
    assert (tmp_path / "precious/data").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("command", "lock"), [("up", "up"), ("ingest", "driver"), ("train", "train"), ("monitor", "monitor")]
)
def test_a_second_one_on_a_store_is_refused_in_one_line(tmp_path: Path, command: str, lock: str) -> None:
    store = Store(str(tmp_path))
    with locked(store, f"state/{lock}.lock"):
        found = subprocess.run(
            [sys.executable, "-m", "weir", command, "--store", store.url, "--set", f"pipeline.log={tmp_path}"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 1
    assert re.fullmatch(rf"weir: another .*{lock}\.lock is locked.*\n", found.stderr), found.stderr


def test_once_needs_something_that_ends() -> None:
    assert "--once and --fresh concern a replay" in run("up", "--once", status=2)


def test_generate_writes_the_log_it_tells_of(tmp_path: Path) -> None:
    size = ["--users", "20", "--items", "40", "--events", "300", "--days", "2"]
    truth = run_json("generate", str(tmp_path / "log.jsonl"), *size)
    assert truth["events"] == 300
    assert len((tmp_path / "log.jsonl").read_bytes().splitlines()) == truth["lines"]
    run("generate", str(tmp_path / "log.jsonl.gz"), *size)
    assert "a log ends in .jsonl" in run("generate", str(tmp_path / "log.csv"), status=2)


def test_replay_ingest_inspect_and_click_work_on_one_store(tmp_path: Path) -> None:
    """A newcomer's path through the parts, each as its own command."""
    log, store, folder = str(tmp_path / "log.jsonl"), str(tmp_path / "store"), str(tmp_path / "segments")
    size = ["--users", "20", "--items", "40", "--events", "300", "--days", "2"]
    truth = run_json("generate", log, *size)
    common = ["--store", store, "--set", f"pipeline.log={folder}", "--set", "pipeline.metrics_port=0"]
    placed = run_json("replay", log, "--seconds", "0.1", "--segments", "6", *common)
    assert (placed["placed_rows"], placed["finished"]) == (truth["lines"], True)
    assert "choose another --store" in run("replay", log, "--seconds", "1", "--segments", "7", *common, status=1)
    done = run_json("ingest", *common)
    assert (done["valid"], done["dead"], done["duplicates"]) == (
        truth["events"],
        truth["malformed"],
        truth["duplicates"],
    )
    windows = run_json("inspect", "windows", *common)
    assert sum(window["counts"]["events"] for window in windows) == truth["events"]
    assert "panes in" in run("inspect", "windows", *common)
    sketch = run_json("inspect", "sketch", "--window", "0", "--top", "3", *common)
    assert sketch["events"] == windows[0]["counts"]["positives"]
    assert len(sketch["top"]) == 3
    assert "there is no pane 99" in run("inspect", "sketch", "--window", "99", *common, status=1)
    assert "holds no bundle yet" in run("inspect", "bundles", *common)
    assert "holds no complete checkpoint; train first" in run("export", *common, status=1)
    event = run_json("click", "anna-0", "jazz-000", "--no-wait", *common)
    assert Path(event["segment"]).is_file()
    # A process of its own, as in life: the metrics of the first one belong to it.
    again = subprocess.run([sys.executable, "-m", "weir", "ingest", *common, "--json"], capture_output=True, check=True)
    assert json.loads(again.stdout)["valid"] == 1
    newest = WindowLog(Store(store)).committed()[-1]
    assert newest.max_event_ms == event["event_ms"]


def test_rows_that_are_all_refused_end_a_bounded_run_with_an_error_and_are_read_again(tmp_path: Path) -> None:
    log, store = tmp_path / "log.jsonl", str(tmp_path / "store")
    common = ["--log", str(log), "--store", store, "--set", "pipeline.metrics_port=0"]
    log.write_text('{"user_id": "ann", "item_id": "jazz", "timestamp": 1700000000}\n')

    def ingest() -> subprocess.CompletedProcess[str]:
        # The metrics of a pipeline belong to its process.
        command = [sys.executable, "-m", "weir", "ingest", *common, "--json"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert ingest().returncode == 0
    row = '{"user_id": "ann", "item_id": "soul", "timestamp": 1700000001, "weight": %s}\n'
    log.write_text(log.read_text() + row % 400 + row % 500 + "no json\n")
    found = ingest()
    assert found.returncode == 1
    assert json.loads(found.stdout)["refused"] == {"weight_too_large": 2, "malformed_json": 1}
    assert "2 for weight_too_large" in found.stderr
    assert "`weir retry weight_too_large`" in found.stderr
    # Nothing is new.
    assert ingest().returncode == 0
    assert "malformed_avro" in run("retry", "weight", *common, status=2)
    raised = [*common, "--set", "pipeline.max_weight=1000"]
    assert "weir settings --store" in run("retry", *raised, status=2)
    run("settings", "--store", store, "--set", "pipeline.max_weight=1000")
    shown = run_json("retry", "--dry-run", *raised)
    assert (shown["letters"], shown["valid"], shown["events"]) == (3, 2, 0)
    done = run_json("retry", "weight_too_large", *raised)
    assert (done["letters"], done["events"], done["refused"]) == (2, 2, {})
    assert run_json("retry", *raised)["refused"] == {"malformed_json": 1}


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    WindowLog(store).commit(a_pane(0))
    store.write(CommitLog.name(0), store.read(CommitLog.name(0))[:-9])
    output = run("inspect", "windows", "--store", str(tmp_path), status=1)
    assert output.startswith(f"weir: {tmp_path}/{CommitLog.name(0)}: has checksum ")


def test_what_up_left_in_the_store_holds_for_other_commands(tmp_path: Path) -> None:
    Store(str(tmp_path)).write("state/settings.json", b'{"store": "elsewhere", "serving": {"port": 7}}')
    shown = run_json("config", "show", "--store", str(tmp_path))
    assert shown["serving"]["port"] == 7
    assert shown["store"] == str(tmp_path)
    shown = run_json("config", "show", "--store", str(tmp_path), "--set", "serving.port=8")
    assert shown["serving"]["port"] == 8
    assert run("config", "check", "--store", str(tmp_path)) == "the settings can be used\n"


def test_a_file_is_checked_by_its_name_alone_and_every_problem_is_told(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text(f"store: {tmp_path}\nserving: {{port: -1}}\ntrainer: {{batch_sise: 3, seed: x}}\n")
    for arguments in ([str(file)], ["--config", str(file)]):
        output = run("config", "check", *arguments, status=2)
        for key in ("serving.port = -1", "trainer.batch_sise", "trainer.seed = 'x'"):
            assert key in output
    # An object store that cannot be reached from here, and would have to be asked what it remembers.
    file.write_text("store: s3://nowhere/weir\n")
    assert run("config", "check", str(file)) == "the settings can be used\n"


def test_a_refused_up_says_why_and_writes_nothing(tmp_path: Path) -> None:
    """As a process: what libraries log at their import comes before any command has set up logging."""
    (tmp_path / "shop.csv").write_text("customer,sku,time\nu,i,1700000000\n")
    ports = [part for key in PORTS for part in ("--set", f"{key}=0")]
    for log in ("nowhere.jsonl", "shop.csv"):
        found = subprocess.run(
            [sys.executable, "-m", "weir", "up", "--store", "new/store", "--log", log, *ports],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert found.returncode == 1, found
        assert re.match(rf"weir: .*{log}", found.stderr), found.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["shop.csv"]


def test_no_command_shows_what_libraries_log_at_their_import(tmp_path: Path) -> None:
    WindowLog(Store(str(tmp_path))).commit(a_pane(0))
    command = ["retire", "--older-than", "30d", "--dry-run", "--store", str(tmp_path)]
    found = subprocess.run([sys.executable, "-m", "weir", *command], capture_output=True, text=True, check=True)
    assert found.stderr == ""


def test_up_waits_for_no_pipeline() -> None:
    """Its own start is a part of the time to the first answer."""
    code = "import sys, weir.up.run; print(sorted({'apache_beam', 'torch', 'scipy', 'faiss'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
