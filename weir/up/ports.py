"""The ports of all stages on one machine: moved by an offset, and checked before the stages start."""

import contextlib
import socket
from contextlib import closing
from typing import Any, Final

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from weir.config import Settings, SettingsError
from weir.runtime.listening import bare_host, is_held, is_loopback, reached

__all__ = [
    "PORTS",
    "await_ports",
    "busy_ports",
    "free_port",
    "is_served",
    "metrics_url",
    "page_scheme",
    "with_ports",
]

PORTS: Final = {
    "serving.port": "gRPC",
    "serving.http_port": "HTTP",
    "pipeline.metrics_port": "pipeline metrics",
    "trainer.metrics_port": "trainer metrics",
    "serving.metrics_port": "server metrics",
    "monitor.metrics_port": "monitor metrics",
    "monitor.page_port": "page",
}

_POLL_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 1.0
_DISTANCES: Final = {"serving.http_port": 29, "monitor.page_port": 39}
"""Default distances of the HTTP and page ports from the gRPC port: 50080 and 50090 with 50051."""


def with_ports(settings: Settings, offset: int) -> Settings:
    """Return the settings with every port moved by `offset`, and the monitor's target set.

    Port 0 is replaced by a free port.

    Raises `SettingsError` if two processes would share a port, or a port exceeds 65535.
    """
    ports = {key: (port + offset if port else free_port()) for key, port in _ports(settings).items()}
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
    changes["monitor"]["target"] = f"{reached(settings.serving.host)}:{ports['serving.port']}"
    sections = {name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    return settings.model_copy(update=sections)


def busy_ports(settings: Settings) -> list[str]:
    """Return a message for each port that another socket holds; raises `CannotListenError` for any other failure."""
    return [
        f"port {port} ({PORTS[key]}, {key}) is in use"
        for key, port in _ports(settings).items()
        if is_held(key, _host(settings, key), port)
    ]


def is_served(settings: Settings) -> bool:
    """Return whether a process listens on one of the ports.

    If not, a busy port is only the local end of a connection.
    """
    for key, port in _ports(settings).items():
        with contextlib.suppress(OSError):
            socket.create_connection((bare_host(_host(settings, key)), port), _CONNECT_SECONDS).close()
            return True
    return False


def await_ports(settings: Settings, seconds: float) -> list[str]:
    """Wait until no port is busy, at most `seconds`; return the messages of `busy_ports` about the remaining ports."""
    patient = Retrying(retry=retry_if_result(bool), stop=stop_after_delay(seconds), wait=wait_fixed(_POLL_SECONDS))
    try:
        return patient(busy_ports, settings)
    except RetryError as error:
        busy: list[str] = error.last_attempt.result()
        return busy


def _ports(settings: Settings) -> dict[str, int]:
    found = {key: getattr(getattr(settings, key.split(".")[0]), key.split(".")[1]) for key in PORTS}
    grpc = settings.serving.port
    return found | {key: grpc and grpc + far for key, far in _DISTANCES.items() if found[key] is None}


def _host(settings: Settings, key: str) -> str:
    """Return the address to which the port of `key` is bound."""
    section, name = key.split(".")
    own = {"metrics_port": "metrics_host", "page_port": "page_host"}
    host: str = getattr(getattr(settings, section), own.get(name, "host"))
    return host


def metrics_url(settings: Settings, section: str) -> str:
    """Return the URL of a stage's metrics on this machine."""
    stage = getattr(settings, section)
    return f"http://{reached(stage.metrics_host)}:{stage.metrics_port}/metrics"


def page_scheme(settings: Settings) -> str:
    """Return the page's URL scheme: https off loopback if the server has a certificate, else http."""
    plain = settings.serving.tls.certificate_file is None or is_loopback(settings.monitor.page_host)
    return "http" if plain else "https"


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
