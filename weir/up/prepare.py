"""What `weir up` checks and writes before it starts a process, and the settings of a demo on two cores."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contracts import Store, columns
from logs import Block, BlockId, LogConfig, Validator
from weir.config import Settings
from weir.demo.generator import GENERATED, generate
from weir.demo.source import LogProfile, LogSource, open_log
from weir.errors import CommandError, UsageError
from weir.session import REMEMBERED, Session, open_session, remembered
from weir.up.options import UpOptions
from weir.up.ports import PORTS, busy_ports, with_ports
from weir.up.processes import Replayed

__all__ = ["Launch", "demo_settings", "last_user", "log_settings", "prepare"]

_GENERATED: Final = "generated.jsonl"
_ROWS: Final = 200
"""The last rows of a log, among which a user to query for is found."""
_MARK: Final = "state/demo"
"""Marks the store of a demo, whose data `--once` may remove."""

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
"""From this many rows on, two cores keep up only with larger batches."""


@dataclass(frozen=True)
class Launch:
    """What to run; `user` is one of the log to query for, None without a replayed log."""

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
        """The settings, for the processes."""
        return self.folder / REMEMBERED


def prepare(config: Path | None, store: str | None, assign: list[str] | None, options: UpOptions) -> Launch:
    """Check all that can be checked, save the settings in the store, and return what to run.

    Raises `UsageError`, `CommandError`, `SettingsError`, and what `open_log` raises.
    """
    started = time.monotonic()
    replays = options.demo or options.log is not None
    if options.once and not replays:
        raise UsageError("--once ends with the replay, so it needs --demo or --log FILE")
    session = open_session(config, store, assign, base={} if replays else None)
    folder = _local_folder(session.store)
    if not replays:
        # The remembered ports already include an offset.
        session = open_session(config, store, assign, base=_without_ports(remembered(session.store)))
    if busy := busy_ports(with_ports(session.settings, options.port_offset)):
        raise CommandError("; ".join(busy) + ": stop what holds it, or choose others with --port-offset 100")
    if not replays:
        return Launch(_settle(session, folder, options), options, None, None, started)
    _make_room(session.store, folder, options)
    path = (options.log or _generated_log(session.store)).resolve()
    source = open_log(path, session.settings.pipeline)
    base = (
        demo_settings(folder / "log", source.profile, generated=options.log is None)
        if options.demo
        else log_settings(folder / "log", source.profile)
    )
    session = _settle(open_session(config, store, assign, base=base), folder, options)
    user = last_user(source, session.settings.pipeline)
    return Launch(session, options, Replayed(path, options.seconds), user, started)


def _make_room(store: Store, folder: Path, options: UpOptions) -> None:
    """Empty the store with ``--once``, and mark an empty one as a demo's."""
    if options.log is not None and options.log.parts[:1] == ("kafka:",):
        raise UsageError(
            "--log replays a finished log, and a Kafka topic is a live one. "
            "To follow it: weir up --set pipeline.log=kafka://HOST:PORT/TOPIC"
        )
    if options.log is not None and options.log.is_dir():
        raise UsageError(
            f"--log {options.log} is a folder; it takes one finished log to replay. "
            f"To follow a folder: weir up --set pipeline.log={options.log}"
        )
    if options.log is not None and not options.log.is_file():
        raise FileNotFoundError(f"{options.log}: there is no such log file")
    if options.once:
        if options.log is not None and options.log.resolve().is_relative_to(folder):
            raise UsageError(f"--log {options.log} is in the store, which --once empties: move it elsewhere")
        _remove_earlier_demo(store)
    if options.demo and not store.glob("*"):
        store.write(_MARK, b"weir up --demo --once may remove this folder\n")


def _without_ports(settings: dict[str, Any]) -> dict[str, Any]:
    ports = {tuple(key.split(".")) for key in PORTS}
    return {
        section: {name: value for name, value in values.items() if (section, name) not in ports}
        for section, values in settings.items()
    }


def _settle(session: Session, folder: Path, options: UpOptions) -> Session:
    """Make paths absolute, choose ports, and save the settings in the store for the processes and later commands."""
    settings: Settings = with_ports(session.settings, options.port_offset)
    log = settings.pipeline.log
    if "://" not in log and not any(sign in log for sign in "*?["):
        # `weir click` needs a folder, and so does a pipeline that waits for the first segment.
        path = Path(log).resolve()
        if not path.exists():
            path.mkdir(parents=True)
        settings = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update={"log": str(path)})})
    settings = settings.model_copy(update={"store": str(folder)})
    session.store.write(REMEMBERED, settings.model_dump_json(indent=2).encode())
    return Session(settings, Store(str(folder)), session.out, session.notes)


def _local_folder(store: Store) -> Path:
    if store.local_path is None:
        raise UsageError(f"--store {store.url}: `weir up` runs on one machine and needs a local folder")
    return store.local_path.resolve()


def _remove_earlier_demo(store: Store) -> None:
    """Empty the store; refuses to touch what no demo made."""
    if not store.exists(_MARK) and store.glob("*"):
        raise CommandError(
            f"{store.path('')} holds data that no demo made: --once needs an empty store, so choose another --store"
        )
    store.remove("")


def _generated_log(store: Store) -> Path:
    """Return the generated log, always the same; generated unless it exists."""
    if not store.exists(_GENERATED):
        store.write(_GENERATED, generate().lines)
    return Path(store.path(_GENERATED))


def demo_settings(folder: Path, profile: LogProfile, *, generated: bool) -> dict[str, Any]:
    """Return what replaces the defaults in a demo; `folder` is for the replay's segments."""
    settings = {section: dict(values) for section, values in _SMALL.items()}
    settings["pipeline"] |= log_settings(folder, profile)["pipeline"] | (GENERATED if generated else {})
    if profile.rows > _LARGE_LOG:
        settings["trainer"] |= {"batch_size": 1024, "negatives": {"uniform": 512}}
    return settings


def log_settings(folder: Path, profile: LogProfile) -> dict[str, Any]:
    """Return the settings that depend on the replayed log: the folder of its segments, and the window.

    The window is the shortest usual length that divides the log's span into at most 60
    (`weir.demo.source.nice_window`); it stays open for a hundredth of its length.
    """
    window = profile.window_seconds
    return {
        "pipeline": {"log": str(folder), "window_seconds": window, "allowed_lateness_seconds": max(60, window // 100)}
    }


def last_user(source: LogSource, config: LogConfig) -> str:
    """Return the user of one of the last rows of a log, with the id as in its windows; raises `ValueError`."""
    rows = source.rows(max(0, source.profile.rows - _ROWS), source.profile.rows)
    valid, _ = Validator(config).validate(Block(BlockId("log", 0), rows))
    if not len(valid.rows):
        raise ValueError(f"none of the last {_ROWS} rows of the log is valid")
    return str(valid.rows[columns.USER_ID][-1].as_py())
