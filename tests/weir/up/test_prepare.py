""""""

import json
import socket
import struct
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from weir.check.text import UnreadableLogError
from weir.config import SettingsError, load_settings
from weir.contracts import Layout, Store, StoreFormat, ensure_format
from weir.demo.generator import GeneratorConfig, generate
from weir.demo.replay import LogProfile, open_log
from weir.errors import CommandError, UsageError
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.readers import LogColumns, LogConfig
from weir.up.options import UpOptions
from weir.up.prepare import Launch, Replayed, child_specs, demo_settings, last_user, log_settings, pace, prepare

FREE = [
    f"{key}={port}"
    for port, key in enumerate(
        (
            "serving.port",
            "pipeline.metrics_port",
            "trainer.metrics_port",
            "serving.metrics_port",
            "monitor.metrics_port",
        ),
        start=23_400,
    )
]


def start(store: Path, assign: list[str] | None = None, **changes: object) -> Launch:
    given = {
        "demo": False,
        "once": False,
        "log": None,
        "seconds": 1.0,
        "ranks": 1,
        "fresh": False,
        "port_offset": 0,
        "timeout": 9.0,
    }
    options = UpOptions(**{**given, **changes})  # type: ignore[arg-type]
    return prepare(None, str(store), FREE if assign is None else assign, options)


TLS = "serving.tls={certificate_file: c.pem, key_file: k.pem}"
TOKENS = "serving.auth={jwks: keys.json, issuer: i, audience: a}"


@pytest.mark.parametrize(
    ("assign", "lacking"),
    [
        ([TLS], "client.tls"),
        (["client.tls=true"], "client.tls"),
        (["serving.tls={certificate_file: c, key_file: k, client_ca_file: a}", "client.tls=true"], "certificate_file"),
        ([TLS, TOKENS, "client.tls=true"], "client.token_file"),
    ],
)
def test_a_server_that_the_other_stages_could_not_ask_is_refused(
    tmp_path: Path, assign: list[str], lacking: str
) -> None:
    store = tmp_path / "store"
    with pytest.raises(SettingsError, match=lacking):
        start(store, [*FREE, *assign], demo=True, log=log_file(tmp_path / "log.jsonl"))
    assert not store.exists()
    start(store, [*FREE, TLS, TOKENS, "client={tls: true, token_file: t}"], log=log_file(tmp_path / "log.jsonl"))


def test_a_port_that_only_a_connection_holds_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_file(tmp_path / "log.jsonl")
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 23_400))
        # Reset at its end, or TIME_WAIT holds the port for a minute.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        threading.Timer(0.5, client.close).start()
        start(tmp_path / "store", demo=True, log=log)
    assert "port 23400 (gRPC, serving.port) is in use by a connection: waiting up to 65 s" in capsys.readouterr().err


def test_a_port_that_a_server_holds_is_refused_at_once(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 23_400)),
        pytest.raises(CommandError, match=r"port 23400 \(gRPC, serving.port\) is in use: .* --port-offset 100"),
    ):
        start(tmp_path / "store", demo=True, log=log_file(tmp_path / "log.jsonl"))
    assert not (tmp_path / "store").exists()


def log_file(path: Path) -> Path:
    path.write_text('{"user_id": "u", "item_id": "i", "timestamp": 1700000000}\n' * 3)
    return path


def test_the_settings_for_all_processes_are_left_in_the_store(tmp_path: Path) -> None:
    launch = start(tmp_path / "store", demo=True, log=log_file(tmp_path / "log.jsonl"), port_offset=7)
    settings = load_settings(launch.settings_file)
    assert settings.serving.port == 23_407
    assert settings.monitor.target == "127.0.0.1:23407"
    assert settings.store == str(tmp_path / "store")
    assert settings.pipeline.log == str(tmp_path / "store" / "log")
    assert Path(settings.pipeline.log).is_dir()
    assert launch.user == "u"
    assert launch.replayed is not None
    assert launch.replayed.log == tmp_path / "log.jsonl"


def test_a_log_without_demo_keeps_the_models_settings(tmp_path: Path) -> None:
    launch = start(tmp_path / "store", log=log_file(tmp_path / "log.jsonl"))
    assert launch.session.settings.trainer.batch_size == load_settings().trainer.batch_size


def test_settings_that_name_the_log_itself_are_those_that_init_prints(tmp_path: Path) -> None:
    """The pipeline reads the segments of it that are placed, one after another, and not the whole of it at once."""
    log, store = log_file(tmp_path / "log.jsonl"), tmp_path / "store"
    launch = start(store, [*FREE, f"pipeline.log={log}"], log=log)
    assert Path(launch.session.settings.pipeline.log) == store / "log"
    assert load_settings(store / "state/settings.json").pipeline.log == str(store / "log")
    elsewhere = tmp_path / "segments"
    launch = start(tmp_path / "other", [*FREE, f"pipeline.log={elsewhere}"], log=log)
    assert Path(launch.session.settings.pipeline.log) == elsewhere


def test_a_later_up_remembers_all_but_the_ports(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = start(store, demo=True, log=log_file(tmp_path / "log.jsonl"), port_offset=7).session.settings
    again = start(store, [], port_offset=14_000).session.settings
    assert again.trainer.model_copy(update={"metrics_port": 0}) == first.trainer.model_copy(update={"metrics_port": 0})
    assert again.pipeline.log == first.pipeline.log
    assert again.serving.port == load_settings().serving.port + 14_000


def test_once_begins_from_nothing_only_if_asked_to(tmp_path: Path) -> None:
    store, log = tmp_path / "store", log_file(tmp_path / "log.jsonl")
    start(store, demo=True, once=True, log=log)
    Store(str(store)).write("windows/old", b"1")
    with pytest.raises(CommandError, match=r"holds a replay of log\.jsonl: --fresh removes it"):
        start(store, demo=True, once=True, log=log)
    assert (store / "windows/old").exists()
    start(store, demo=True, once=True, fresh=True, log=log)
    assert not (store / "windows").exists()


def test_another_log_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store, log = tmp_path / "store", log_file(tmp_path / "log.jsonl")
    start(store, demo=True, log=log)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    other = log_file(tmp_path / "other.jsonl")
    with pytest.raises(CommandError, match=r"holds a replay of log\.jsonl: --fresh"):
        start(store, log=other)
    with pytest.raises(CommandError, match=r"holds a replay of log\.jsonl: pipeline\.log = .* needs another --store"):
        start(store, [*FREE, f"pipeline.log={tmp_path}"])
    ensure_format(Store(str(store)), StoreFormat(layout=Layout(window_ms=1000, user_shards=2, sketch={})))
    with pytest.raises(SettingsError, match="window_seconds"):
        start(store, [*FREE, "pipeline.window_seconds=60"], demo=True, log=log)
    (store / "STORE.json").unlink()
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_what_no_replay_made_is_never_removed(tmp_path: Path) -> None:
    live = tmp_path / "live"
    (tmp_path / "source").mkdir()
    log_file(tmp_path / "source" / "a.jsonl")
    ingest(Store(str(live)), PipelineConfig(log=str(tmp_path / "source"), metrics_port=0), registry=CollectorRegistry())
    # The mark of a demo of version 0.1, and events of another log.
    Store(str(live)).write("state/demo", b"")
    for fresh in (False, True):
        with pytest.raises(CommandError, match="which is no replay alone"):
            start(live, demo=True, once=True, fresh=fresh)
    assert list(live.glob("windows/*"))


def test_a_log_without_a_valid_row_is_refused_with_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("customer,sku,time\nu,i,1700000000\n")
    with pytest.raises(UnreadableLogError, match=r"weir up --log .*shop\.csv .*--set pipeline.*=customer"):
        start(tmp_path / "store", log=tmp_path / "shop.csv")
    with pytest.raises(UnreadableLogError, match=r"weir up .*--set pipeline\.columns\.user_id=customer"):
        start(tmp_path / "store", [*FREE, f"pipeline.log={tmp_path / 'shop.csv'}"])
    assert not (tmp_path / "store" / "state" / "settings.json").exists()


def test_an_empty_folder_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(tmp_path / "store", [*FREE, f"pipeline.log={tmp_path / 'incoming'}"])
    assert "holds no rows yet: waiting for the first" in capsys.readouterr().err


def test_few_rows_are_replayed_in_less_time() -> None:
    assert [pace(rows) for rows in (3, 6000, 10**6)] == [20, 60, 120]


def test_a_demo_that_goes_on_keeps_what_there_is(tmp_path: Path) -> None:
    store, log = tmp_path / "store", log_file(tmp_path / "log.jsonl")
    start(store, demo=True, log=log)
    Store(str(store)).write("windows/old", b"1")
    start(store, demo=True, log=log)
    assert (store / "windows/old").exists()


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="need --demo or --log"):
        start(tmp_path, once=True)
    Store(str(tmp_path / "store")).write("data", b"1")
    with pytest.raises(CommandError, match="which is no replay alone"):
        start(tmp_path / "store", once=True, log=log_file(tmp_path / "log.jsonl"))
    with pytest.raises(FileNotFoundError, match="there is no such log file"):
        start(tmp_path / "other", log=tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match=r"is a folder; .* weir up --set pipeline\.log="):
        start(tmp_path / "other", log=tmp_path)
    topic = Path("kafka://broker:9092/clicks")
    with pytest.raises(UsageError, match="--demo replays a finished log, but kafka://"):
        start(tmp_path / "other", demo=True, log=topic)
    with pytest.raises(UsageError, match="need --demo or --log FILE"):
        start(tmp_path / "other", once=True, log=topic)


def test_a_topic_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = start(tmp_path, log=Path("kafka://one:9092,two:9092/clicks"))
    assert launch.replayed is None
    assert launch.session.settings.pipeline.log == "kafka://one:9092,two:9092/clicks"
    assert launch.session.settings.pipeline.window_seconds == 10
    assert "event -> answer: about 19.1 s at most" in capsys.readouterr().err


def test_a_wrong_log_removes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    start(store, demo=True, log=log_file(tmp_path / "log.jsonl"))
    inside = log_file(store / "own.jsonl")
    with pytest.raises(UsageError, match="is in the store"):
        start(store, demo=True, once=True, log=inside)
    with pytest.raises(FileNotFoundError):
        start(store, demo=True, once=True, log=tmp_path / "missing.jsonl")
    assert inside.exists()


MONTH = LogProfile(200_000, 0, 30 * 86_400_000)


@pytest.mark.parametrize("rows", [200_000, 5_000_000])
@pytest.mark.parametrize("generated", [True, False])
def test_the_preset_can_be_used(rows: int, generated: bool) -> None:
    profile = LogProfile(rows, 0, 30 * 86_400_000)
    settings = load_settings(None, None, demo_settings(Path("log"), profile, generated=generated))
    assert settings.pipeline.log == "log"
    assert settings.pipeline.window_seconds == 12 * 3600
    # The tower must not read further back than the pipeline remembers.
    assert settings.trainer.tower.history_length <= settings.pipeline.history_length
    assert bool(settings.pipeline.event_types) == generated


def test_the_generated_logs_event_types_are_all_known() -> None:
    types = demo_settings(Path("log"), MONTH, generated=True)["pipeline"]["event_types"]
    lines = generate(GeneratorConfig(users=20, items=40, events=500, days=2, malformed=0)).lines
    found = {line.split(b'"event_type":"')[1].split(b'"')[0].decode() for line in lines.splitlines()}
    assert found == set(types)


def test_a_log_alone_decides_the_window_and_nothing_of_the_model() -> None:
    assert set(log_settings(Path("log"), MONTH)) == {"pipeline"}


def test_the_user_of_the_last_sound_row_is_taken(tmp_path: Path) -> None:
    rows = [{"user_id": user, "item_id": "i", "timestamp": 1_700_000_000 + n} for n, user in enumerate(["a", "b", "é"])]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*(json.dumps(row) for row in rows), "{broken", '["list"]', '{"user_id": ""}']))
    assert last_user(open_log(path), LogConfig()) == "é"


def test_numbers_are_spelt_as_the_windows_will(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"uid": [3, 4], "item_id": [1, 2], "timestamp": [1_700_000_000, 1_700_000_001]}), path)
    config = LogConfig(columns=LogColumns(user_id="uid"))
    assert last_user(open_log(path, config), config) == "4"


def test_a_log_that_ends_in_refused_rows_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sound = '{"user_id": "u", "item_id": "i", "timestamp": 1700000000}\n'
    path.write_text(sound + 200 * '{"timestamp": 1700000000}\n')
    with pytest.raises(ValueError, match="none of the last 200 rows of the log is valid"):
        last_user(open_log(path), LogConfig())


@pytest.mark.parametrize("step", ["demo_settings", "remember_replay", "_settle"])
def test_a_demo_that_was_interrupted_at_its_start_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its log is written by then, before the first mark of it or after."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"weir.up.prepare.{step}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "store", demo=True)
    assert start(tmp_path / "store", demo=True).replayed is not None


def test_children_get_the_file_and_nothing_of_our_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TRAINER__SEED", "5")
    monkeypatch.setenv("OTHER", "kept")
    specs = child_specs(Path("settings.json"), 3, Replayed(Path("log.jsonl"), 9.0))
    assert [spec.name for spec in specs] == ["replay", "pipeline", "trainer", "server", "monitor"]
    assert [spec.name for spec in specs if not spec.forever] == ["replay"]
    assert [spec.starts_after for spec in specs] == [("trainer", "all ranks have started"), None, None, None, None]
    for spec in specs:
        assert spec.command[-2:] == ("--config", "settings.json")
        assert "WEIR_TRAINER__SEED" not in spec.environment
        assert spec.environment["OTHER"] == "kept"
    assert "3" in specs[2].command
    assert [spec.name for spec in child_specs(Path("s"), 1, None)] == ["pipeline", "trainer", "server", "monitor"]


def test_each_line_that_plays_a_role_has_a_trainer() -> None:
    specs = child_specs(Path("s"), 2, Replayed(Path("log.jsonl"), 9.0), ("new", "main"))
    assert [spec.name for spec in specs] == ["replay", "pipeline", "trainer-new", "trainer", "server", "monitor"]
    assert specs[2].command[-4:-2] == ("--variant", "new")
    assert "--variant" not in specs[3].command
    assert specs[0].starts_after == ("trainer-new", "all ranks have started")
