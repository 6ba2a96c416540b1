"""Checks before `weir up` starts, the settings that it saves, and the processes that it starts."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from weir.check.report import LogReport, check_log
from weir.check.text import in_one_line, proposed, require_readable, what_is_wrong
from weir.config import Settings, SettingsError, located
from weir.contracts import Store
from weir.contracts.base import columns
from weir.contracts.bundles.variants import MAIN
from weir.contracts.storage.format import read_format
from weir.demo.generator import GENERATED, catalogue_of, generate
from weir.demo.replay import LogProfile, LogSource, ReplayConfig, check_plan, nice_lateness, open_log
from weir.errors import CommandError, UsageError
from weir.freshness import event_to_answer
from weir.pipelines.layout import open_layout, with_window
from weir.pipelines.store_settings import recorded
from weir.readers import Block, BlockId, LogConfig, Validator, is_topic
from weir.runtime.supervisor import ChildSpec
from weir.session import REMEMBERED, Session, open_session, remembered
from weir.text import escaped, plain, setting, shell
from weir.up.holdings import CATALOGUE, Holdings, holdings, make_room, remember_replay
from weir.up.holdings import GENERATED as GENERATED_LOG
from weir.up.options import UpOptions
from weir.up.ports import PORTS, await_ports, busy_ports, is_served, with_ports

__all__ = ["Launch", "Replayed", "child_specs", "demo_settings", "last_user", "log_settings", "prepare"]

_ROWS: Final = 200
"""Number of last rows of a log in which a user for queries is looked for."""
_SHORTEST_REPLAY: Final = 20.0
_LONGEST_REPLAY: Final = 120.0
_ROWS_PER_SECOND: Final = 100
_TIME_WAIT_SECONDS: Final = 65.0
"""Seconds to wait for a port that a closed connection holds as its local port, for a minute after its end."""

_SMALL: Final[dict[str, Any]] = {
    "pipeline": {"history_length": 20, "user_shards": 2, "idle_seconds": 1.0, "poll_seconds": 0.1},
    "trainer": {
        "batch_size": 128,
        "tower": {"dimension": 32, "history_length": 20, "layers": 1, "heads": 2},
        "negatives": {"uniform": 128},
        "evaluation_examples": 500,
        "export_every_windows": 1,
        "poll_seconds": 0.05,
    },
    "serving": {"poll_seconds": 0.05},
    "monitor": {"examples_per_window": 200, "queries_per_request": 32},
}
_LARGE_LOG: Final = 400_000
"""Number of rows from which on two cores keep up only with larger batches."""


class Replayed(NamedTuple):
    """A finished log to replay: its file, and the duration of the replay in wall-clock seconds."""

    log: Path
    seconds: float


def child_specs(file: Path, ranks: int, replayed: Replayed | None, trained: Sequence[str] = (MAIN,)) -> list[ChildSpec]:
    """Return the processes of `weir up`, the source of events first; all read their settings from `file`.

    Each variant in `trained` has its own trainer, with `ranks` processes.
    """
    environment = _environment(os.environ)
    common = ("--config", str(file))

    def spec(name: str, *arguments: str, forever: bool = True) -> ChildSpec:
        return ChildSpec(name, (sys.executable, "-m", "weir", *arguments, *common), environment, forever)

    specs = [
        spec("pipeline", "ingest", "--follow"),
        *(_trainer(spec, line, ranks) for line in trained),
        spec("server", "serve"),
        spec("monitor", "monitor"),
    ]
    first = specs[1].name
    if replayed is not None:
        # Event time passes during a replay, so it starts after the trainer, the slowest stage to start. The rest of
        # the trainer's start takes no longer than the start of the replay and its first window.
        arguments = ("replay", str(replayed.log), "--seconds", str(replayed.seconds))
        replay = spec("replay", *arguments, forever=False)
        specs.insert(0, replace(replay, starts_after=(first, "all ranks have started")))
    return specs


def _trainer(spec: Callable[..., ChildSpec], line: str, ranks: int) -> ChildSpec:
    command = ("train", "--follow", "--ranks", str(ranks))
    return spec("trainer", *command) if line == MAIN else spec(f"trainer-{line}", *command, "--variant", line)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the processes: without ``WEIR_`` variables, and with one thread per thread pool.

    Settings come from the file instead.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("WEIR_")}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **kept}


@dataclass(frozen=True)
class Launch:
    """What one `weir up` is to do; `user` is a user of the replayed log to query for, None without a replay.

    `started` is the time of its start, by `time.monotonic`.
    """

    session: Session
    options: UpOptions
    replayed: Replayed | None
    user: str | None
    started: float

    @property
    def folder(self) -> Path:
        """Local folder of the store."""
        return Path(self.session.settings.store)

    @property
    def settings_file(self) -> Path:
        """File with the settings for the processes."""
        return self.folder / REMEMBERED


def prepare(config: Path | None, store: str | None, assign: list[str] | None, options: UpOptions) -> Launch:
    """Check everything that can be checked, save the settings in the store, and return what `weir up` is to do.

    Nothing is written before all checks pass. Raises `UsageError`, `CommandError`, `UnreadableLogError`,
    `SettingsError`, `LayoutError`, and the errors of `open_log`.
    """
    started = time.monotonic()
    topic = options.topic
    replays = options.demo or (options.log is not None and topic is None)
    if topic is not None:
        if options.demo:
            raise UsageError(f"--demo replays a finished log, but {topic} is a live one: leave out --demo to follow it")
        assign = [*(assign or ()), f"pipeline.log={topic}"]
    if not replays and (options.once or options.fresh):
        raise UsageError("--once and --fresh concern a replay, so they need --demo or --log FILE")
    session = open_session(config, store, assign, base={} if replays else None)
    folder = _local_folder(session.store)
    if not replays:
        # The remembered ports already include an offset.
        base = _without_ports(remembered(session.store))
        session = open_session(config, store, assign, base=base, recorded=recorded(session.store))
    _check_client(session.settings)
    _check_ports(with_ports(session.settings, options.port_offset), session)
    held = holdings(session.store, folder)
    if not replays:
        _check_live(session, held, options)
        session = _settle(session, folder, options)
        session.notes.print(plain(event_to_answer(session.settings)), soft_wrap=True)
        return Launch(session, options, None, None, started)
    path = (options.log or folder / GENERATED_LOG).resolve()
    source = None if options.log is None else _finished_log(session, folder, options.log, options)
    make_room(held, path, once=options.once, fresh=options.fresh)
    source = source or _generated_log(session.store, path, session.settings.pipeline)
    base = (
        demo_settings(folder / "log", source.profile, generated=options.log is None)
        if options.demo
        else log_settings(folder / "log", source.profile)
    )
    check_plan(session.store, path, source.profile.rows, ReplayConfig().segments)
    kept = recorded(session.store)
    session = open_session(config, store, assign, base=base, recorded=kept)
    if Path(session.settings.pipeline.log).is_file():
        # `weir init` names the log itself; the pipeline must read the folder of its replayed segments.
        assign = [*(assign or ()), f"pipeline.log={folder / 'log'}"]
        session = open_session(config, store, assign, base=base, recorded=kept)
    user = last_user(source, session.settings.pipeline)
    # Written first, so that a start interrupted from here on can be repeated.
    remember_replay(session.store, path)
    session = _settle(session, folder, options)
    return Launch(session, options, Replayed(path, options.seconds or pace(source.profile.rows)), user, started)


def _check_live(session: Session, held: Holdings, options: UpOptions) -> None:
    """Check a log that is followed: it must belong to the store and have a valid row; print a note if it is empty."""
    pipeline = session.settings.pipeline
    if held.replay is not None and Path(pipeline.log).resolve() != held.folder / "log":
        raise CommandError(f"{held}: pipeline.log = {pipeline.log} needs another --store")
    if is_topic(pipeline.log) or not held.is_empty:
        return
    try:
        report = check_log(pipeline)
    except FileNotFoundError:
        report = None
    if report is None or not report.rows:
        session.notes.print(plain(f"{pipeline.log} holds no rows yet: waiting for the first"), soft_wrap=True)
        return
    _show(session, report, options)


def _show(session: Session, report: LogReport, options: UpOptions) -> None:
    """Print a line about the log; raises `UnreadableLogError` if no row is valid."""
    require_readable(report, f"up{_flags(options)}", session.given)
    session.notes.print(plain(f"{report.log}: {in_one_line(report)}"), soft_wrap=True)
    for line in (*what_is_wrong(report), *proposed(report)):
        session.notes.print(plain(line), soft_wrap=True)


def _flags(options: UpOptions) -> str:
    flags = {"--demo": options.demo, "--once": options.once, "--fresh": options.fresh}
    given = "".join(f" {flag}" for flag, is_given in flags.items() if is_given)
    return given if options.log is None else f"{given} --log {shell(options.log)}"


def _finished_log(session: Session, folder: Path, log: Path, options: UpOptions) -> LogSource:
    """Return the log to replay, at the path `log`; raises `UnreadableLogError` if no row is valid."""
    if log.is_dir():
        raise UsageError(
            f"--log {log} is a folder; it takes one finished log to replay. "
            f"To follow a folder: weir up {setting(f'pipeline.log={log}')}"
        )
    if not log.is_file():
        raise FileNotFoundError(f"{log}: there is no such log file")
    if (options.once or options.fresh) and log.resolve().is_relative_to(folder):
        raise UsageError(f"--log {log} is in the store, which --once and --fresh empty: move it elsewhere")
    pipeline = session.settings.pipeline
    report = check_log(pipeline.model_copy(update={"log": str(log)}))
    if report.rows:
        _show(session, report, options)
    return open_log(log.resolve(), pipeline)


def pace(rows: int) -> float:
    """Return the duration of the replay of a log with this many rows, in seconds: from 20 to 120."""
    return min(_LONGEST_REPLAY, max(_SHORTEST_REPLAY, rows / _ROWS_PER_SECOND))


def _without_ports(settings: dict[str, Any]) -> dict[str, Any]:
    ports = {tuple(key.split(".")) for key in PORTS}
    return {
        section: {name: value for name, value in values.items() if (section, name) not in ports}
        if isinstance(values, dict)
        else values
        for section, values in settings.items()
    }


def _settle(session: Session, folder: Path, options: UpOptions) -> Session:
    """Make paths absolute, choose ports, save the settings in the store, and return the session with these settings."""
    settings: Settings = with_ports(session.settings, options.port_offset)
    log = settings.pipeline.log
    if "://" not in log and not any(sign in log for sign in "*?["):
        # `weir click` and a pipeline that waits for the first segment need an existing folder.
        path = Path(log).resolve()
        if not path.exists():
            path.mkdir(parents=True)
        settings = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update={"log": str(path)})})
    windowed = with_window(session.store, settings.pipeline, follow=True)
    settings = settings.model_copy(update={"store": str(folder), "pipeline": windowed, **located(settings)})
    if read_format(session.store) is not None:
        open_layout(session.store, settings.pipeline, located(settings))
    session.store.write(REMEMBERED, escaped(settings.model_dump_json(indent=2)).encode())
    return Session(settings, Store(str(folder)), session.out, session.notes)


def _check_ports(settings: Settings, session: Session) -> None:
    """Raise `CommandError` for busy ports, after a wait if only a closing connection holds them."""
    busy = busy_ports(settings)
    if busy and not is_served(settings):
        line = f"{'; '.join(busy)} by a connection: waiting up to {_TIME_WAIT_SECONDS:.0f} s for its end"
        session.notes.print(plain(line), soft_wrap=True)
        busy = await_ports(settings, _TIME_WAIT_SECONDS)
    if busy:
        raise CommandError("; ".join(busy) + ": stop what holds it, or choose others with --port-offset 100")


def _check_client(settings: Settings) -> None:
    """Raise `SettingsError` if the clients' settings do not fit the server's."""
    tls, client = settings.serving.tls, settings.client
    lacks = []
    if client.tls != (tls.certificate_file is not None):
        lacks.append(f"client.tls = {client.tls}: must be {not client.tls}, as serving.tls.certificate_file says")
    if tls.client_ca_file is not None and client.certificate_file is None:
        lacks.append("client.certificate_file: must be set, as serving.tls.client_ca_file asks clients for one")
    if settings.serving.auth.jwks is not None and client.token_file is None and client.certificate_file is None:
        lacks.append("client.token_file: must be set, as serving.auth.jwks asks clients for tokens")
    if lacks:
        raise SettingsError(lacks)


def _local_folder(store: Store) -> Path:
    if store.local_path is None:
        raise UsageError(f"--store {store.url}: `weir up` runs on one machine and needs a local folder")
    return store.local_path.resolve()


def _generated_log(store: Store, path: Path, config: LogConfig) -> LogSource:
    """Return the demo's log at `path`; the log and its catalogue are generated unless they exist."""
    if not path.exists():
        store.write(GENERATED_LOG, generate().lines)
    if not store.exists(CATALOGUE):
        store.write(CATALOGUE, catalogue_of().lines())
    return open_log(path, config)


def demo_settings(folder: Path, profile: LogProfile, *, generated: bool) -> dict[str, Any]:
    """Return the settings that replace the defaults in a demo; `folder` is for the replay's segments."""
    settings: dict[str, Any] = {section: dict(values) for section, values in _SMALL.items()}
    if generated:
        settings["catalogue"] = str(folder.parent / CATALOGUE)
    settings["pipeline"] |= log_settings(folder, profile)["pipeline"] | (GENERATED if generated else {})
    if profile.rows > _LARGE_LOG:
        settings["trainer"] |= {"batch_size": 1024, "negatives": {"uniform": 512}}
    return settings


def log_settings(folder: Path, profile: LogProfile) -> dict[str, Any]:
    """Return the settings that depend on the replayed log: the folder of its segments, and the window.

    The window is the shortest usual length that divides the log's span into at most 60
    (`weir.demo.replay.nice_window`); it stays open for a hundredth of its length, because a replay passes that at once.
    """
    window = profile.window_seconds
    return {
        "pipeline": {
            "log": str(folder),
            "window_seconds": window,
            "allowed_lateness_seconds": nice_lateness(window),
        }
    }


def last_user(source: LogSource, config: LogConfig) -> str:
    """Return the id of the user of one of the last valid rows of a log; raises `ValueError` if there is none."""
    rows = source.rows(max(0, source.profile.rows - _ROWS), source.profile.rows)
    valid, _ = Validator(config).validate(Block(BlockId("log", 0), rows))
    if not len(valid.rows):
        raise ValueError(f"none of the last {_ROWS} rows of the log is valid")
    return str(valid.rows[columns.USER_ID][-1].as_py())
