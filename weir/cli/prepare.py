"""What `weir up` checks and lays down before it starts a process."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contracts import Store
from weir.cli.errors import CommandError, UsageError
from weir.cli.session import REMEMBERED, Session, open_session, remembered
from weir.config import Settings
from weir.demo.generator import generate
from weir.demo.preset import demo_settings, log_settings
from weir.demo.source import LogSource, open_log
from weir.demo.tour import last_user
from weir.supervisor.plan import PORTS, Replayed, busy_ports, with_ports

__all__ = ["Launch", "UpOptions", "prepare"]

_GENERATED: Final = "generated.jsonl"
_MARK: Final = "state/demo"
"""Says that a store belongs to a demo, whose traces `--once` may remove."""


@dataclass(frozen=True)
class UpOptions:
    """The options of `weir up` itself."""

    demo: bool
    once: bool
    log: Path | None
    seconds: float
    ranks: int
    port_offset: int
    timeout: float


@dataclass(frozen=True)
class Launch:
    """What is to run; `user` is somebody to ask about, None where no log is at hand."""

    session: Session
    options: UpOptions
    replayed: Replayed | None
    user: str | None
    begun: float

    @property
    def folder(self) -> Path:
        """The store on this machine."""
        return Path(self.session.settings.store)

    @property
    def settings_file(self) -> Path:
        """The settings, for the processes."""
        return self.folder / REMEMBERED


def prepare(config: Path | None, store: str | None, assign: list[str] | None, options: UpOptions) -> Launch:
    """Return what is to run, after checking all that can be checked; leaves the settings in the store.

    Raises `UsageError`, `CommandError`, `SettingsError`, and what `open_log` raises.
    """
    begun = time.monotonic()
    replays = options.demo or options.log is not None
    if options.once and not replays:
        raise UsageError("--once ends with the replay, so it needs --demo or --log FILE")
    session = open_session(config, store, assign, base={} if replays else None)
    folder = _local_folder(session.store)
    if not replays:
        # The ports of the last time include the offset of the last time.
        session = open_session(config, store, assign, base=_without_ports(remembered(session.store)))
    if busy := busy_ports(with_ports(session.settings, options.port_offset)):
        raise CommandError("; ".join(busy) + ": stop what holds it, or choose others with --port-offset 100")
    if not replays:
        return Launch(_settle(session, folder, options), options, None, None, begun)
    _make_room(session.store, folder, options)
    path = (options.log or _generated_log(session.store)).resolve()
    source = open_log(path, session.settings.pipeline)
    choose = _demo_settings if options.demo else _log_settings
    session = _settle(open_session(config, store, assign, base=choose(folder, source, options)), folder, options)
    user = last_user(source, session.settings.pipeline)
    return Launch(session, options, Replayed(path, options.seconds), user, begun)


def _make_room(store: Store, folder: Path, options: UpOptions) -> None:
    """Begin anew with ``--once``, and mark an empty store as a demo's."""
    if options.log is not None and options.log.is_dir():
        raise UsageError(
            f"--log {options.log} is a folder; it takes one finished log to replay. "
            f"To follow a folder: weir up --set pipeline.log={options.log}"
        )
    if options.log is not None and not options.log.is_file():
        raise FileNotFoundError(f"{options.log}: there is no such log file")
    if options.once:
        if options.log is not None and options.log.resolve().is_relative_to(folder):
            raise UsageError(f"--log {options.log} lies in the store, which --once begins anew: move it elsewhere")
        _remove_earlier_demo(store)
    if options.demo and not store.glob("*"):
        store.write(_MARK, b"weir up --demo --once may remove this folder\n")


def _without_ports(settings: dict[str, Any]) -> dict[str, Any]:
    ports = {tuple(key.split(".")) for key in PORTS}
    return {
        section: {name: value for name, value in values.items() if (section, name) not in ports}
        for section, values in settings.items()
    }


def _demo_settings(folder: Path, source: LogSource, options: UpOptions) -> dict[str, Any]:
    return demo_settings(folder / "log", source.profile, generated=options.log is None)


def _log_settings(folder: Path, source: LogSource, options: UpOptions) -> dict[str, Any]:
    del options
    return log_settings(folder / "log", source.profile)


def _settle(session: Session, folder: Path, options: UpOptions) -> Session:
    """Fix paths and ports, and leave the settings in the store for the processes and for later commands."""
    settings: Settings = with_ports(session.settings, options.port_offset)
    log = settings.pipeline.log
    if "://" not in log and not any(sign in log for sign in "*?["):
        # A click needs a folder, and so does a pipeline that waits for the first segment.
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
    """Make the store empty; refuses to touch what no demo made."""
    if not store.exists(_MARK) and store.glob("*"):
        raise CommandError(
            f"{store.path('')} holds data that no demo made: --once starts from nothing, so choose another --store"
        )
    store.remove("")


def _generated_log(store: Store) -> Path:
    """Return the generated log, the same every time; made unless it is there."""
    if not store.exists(_GENERATED):
        store.write(_GENERATED, generate().lines)
    return Path(store.path(_GENERATED))
