"""Which processes `weir up` starts, with which settings, on which ports."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from weir.config import Settings, SettingsError
from weir.supervisor.child import ChildSpec

__all__ = ["PORTS", "Replayed", "busy_ports", "child_specs", "with_ports"]

PORTS: Final = {
    "serving.port": "gRPC",
    "pipeline.metrics_port": "pipeline metrics",
    "trainer.metrics_port": "trainer metrics",
    "serving.metrics_port": "server metrics",
    "monitor.metrics_port": "monitor metrics",
}


class Replayed:
    """A finished log to be replayed: the file, and the wall-clock seconds that it takes."""

    def __init__(self, log: Path, seconds: float) -> None:
        self.log = log
        self.seconds = seconds


def with_ports(settings: Settings, offset: int) -> Settings:
    """Return the settings with every port moved by `offset`, 0 replaced by a free port, and the monitor's target set.

    Raises `SettingsError` where two processes would share a port, or one lies above 65535.
    """
    ports = {key: (port + offset if port else _free_port()) for key, port in _ports(settings).items()}
    problems = [f"{key} = {port}: must be at most 65535" for key, port in ports.items() if port > 65535]
    problems += [
        f"{key} = {port}: {other} has the same port"
        for key, port in ports.items()
        for other, same in ports.items()
        if port == same and key > other
    ]
    if problems:
        raise SettingsError(problems)
    changes: dict[str, dict[str, Any]] = {}
    for key, port in ports.items():
        section, name = key.split(".")
        changes.setdefault(section, {})[name] = port
    changes["monitor"]["target"] = f"127.0.0.1:{ports['serving.port']}"
    sections = {name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    return settings.model_copy(update=sections)


def busy_ports(settings: Settings) -> list[str]:
    """Return a line for every port that another process holds."""
    return [
        f"port {port} ({PORTS[key]}, {key}) is in use"
        for key, port in _ports(settings).items()
        if not _is_free(_host(settings, key), port)
    ]


def child_specs(file: Path, ranks: int, replayed: Replayed | None) -> list[ChildSpec]:
    """Return the processes, the source of events first; `file` holds the settings for all of them."""
    environment = _environment(os.environ)
    common = ("--config", str(file))

    def spec(name: str, *arguments: str, forever: bool = True) -> ChildSpec:
        return ChildSpec(name, (sys.executable, "-m", "weir", *arguments, *common), environment, forever)

    specs = [
        spec("pipeline", "ingest", "--follow"),
        spec("trainer", "train", "--follow", "--ranks", str(ranks)),
        spec("server", "serve"),
        spec("monitor", "monitor"),
    ]
    if replayed is not None:
        arguments = ("replay", str(replayed.log), "--seconds", str(replayed.seconds))
        specs.insert(0, spec("replay", *arguments, forever=False))
    return specs


def _ports(settings: Settings) -> dict[str, int]:
    return {key: getattr(getattr(settings, key.split(".")[0]), key.split(".")[1]) for key in PORTS}


def _host(settings: Settings, key: str) -> str:
    """Return the address on which the port of `key` is bound."""
    section, name = key.split(".")
    host: str = getattr(getattr(settings, section), name.replace("port", "host"))
    return host


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the children's variables: the file says it all, and two cores are soon shared by too many threads."""
    kept = {name: value for name, value in environment.items() if not name.startswith("WEIR_")}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **kept}


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    with closing(socket.socket()) as probe:
        # As servers do: a port that waits for stray packets of an earlier process is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
