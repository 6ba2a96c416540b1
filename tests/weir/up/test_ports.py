import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weir.config import Settings, SettingsError
from weir.runtime.listening import reached
from weir.up.ports import PORTS, await_ports, busy_ports, is_served, metrics_url, with_ports


def ports(settings: Settings) -> list[int]:
    return [getattr(getattr(settings, key.split(".")[0]), key.split(".")[1]) for key in PORTS]


def test_an_offset_moves_every_port_and_the_monitor_asks_the_right_server() -> None:
    moved = with_ports(Settings(), 100)
    assert ports(moved) == [port + 100 for port in ports(with_ports(Settings(), 0))]
    assert moved.monitor.target == f"127.0.0.1:{Settings().serving.port + 100}"


def test_zero_takes_free_ports_that_differ() -> None:
    serving = Settings().serving.model_copy(update={"port": 0, "metrics_port": 0})
    settings = with_ports(Settings().model_copy(update={"serving": serving}), 0)
    assert 0 not in ports(settings)
    assert len(set(ports(settings))) == len(PORTS)


def test_http_and_the_page_are_near_grpc_unless_they_have_ports_of_their_own() -> None:
    assert with_ports(Settings(), 7).serving.http_port == 50087
    assert with_ports(Settings(), 7).monitor.page_port == 50097
    own = Settings().serving.model_copy(update={"http_port": 8000})
    assert with_ports(Settings().model_copy(update={"serving": own}), 7).serving.http_port == 8007


def test_ports_that_clash_or_do_not_exist_are_refused_together() -> None:
    serving = Settings().serving.model_copy(
        update={"metrics_port": Settings().trainer.metrics_port, "port": 65535, "http_port": 1}
    )
    monitor = Settings().monitor.model_copy(update={"page_port": 2})
    with pytest.raises(SettingsError) as caught:
        with_ports(Settings().model_copy(update={"serving": serving, "monitor": monitor}), 1)
    assert caught.value.problems == [
        "serving.port = 65536: must be at most 65535",
        "trainer.metrics_port = 9103: serving.metrics_port has the same port",
    ]


def test_a_port_that_somebody_listens_on_is_named() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        serving = Settings().serving.model_copy(update={"port": port, "http_port": 1})
        found = busy_ports(Settings().model_copy(update={"serving": serving}))
    assert f"port {port} (gRPC, serving.port) is in use" in found


def test_a_metrics_port_is_looked_for_where_it_will_be_bound() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.2", 0))
        busy.listen()
        port = busy.getsockname()[1]
        for host, held in (("127.0.0.1", False), ("127.0.0.2", True)):
            trainer = Settings().trainer.model_copy(update={"metrics_host": host, "metrics_port": port})
            found = busy_ports(Settings().model_copy(update={"trainer": trainer}))
            assert (f"port {port} (trainer metrics, trainer.metrics_port) is in use" in found) == held


APART = "127.0.0.3"
"""A loopback address of this file alone: on 127.0.0.1 any process may get the same port for a connection."""

IP_BIND_ADDRESS_NO_PORT = 24
"""Linux's number, which Python 3.11 does not name: `connect` chooses the port, as it does for most clients."""


def only_serving(**ports: int) -> Settings:
    """Return settings with these ports of the server, and free ones for all else, all of them on `APART`."""
    stages = ("pipeline", "trainer", "serving", "monitor")
    changes: dict[str, dict[str, Any]] = {name: {"metrics_port": 0, "metrics_host": APART} for name in stages}
    changes["serving"] |= {"port": 0, "host": APART} | ports
    changes["monitor"]["page_host"] = APART
    sections = {name: getattr(Settings(), name).model_copy(update=change) for name, change in changes.items()}
    return with_ports(Settings().model_copy(update=sections), 0)


@contextmanager
def connected() -> Iterator[tuple[Settings, socket.socket]]:
    """A connection whose local port is that of the settings' server."""
    with socket.socket() as server, socket.socket() as client:
        server.bind((APART, 0))
        server.listen()
        client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        client.bind((APART, 0))
        client.connect(server.getsockname())
        yield only_serving(port=client.getsockname()[1]), client


def close_at_once(client: socket.socket) -> None:
    """Reset the connection, so that no TIME_WAIT is left of it."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_the_port_of_a_connection_is_waited_for() -> None:
    with connected() as (settings, client):
        busy = busy_ports(settings)
        assert [line for line in busy if "serving.port" in line]
        assert not is_served(settings)
        assert await_ports(settings, 0.1) == busy
        threading.Timer(0.3, close_at_once, [client]).start()
        assert await_ports(settings, 30) == []


def test_a_port_that_somebody_listens_on_is_served() -> None:
    with socket.socket() as busy:
        busy.bind((APART, 0))
        busy.listen()
        assert is_served(only_serving(metrics_port=busy.getsockname()[1]))


@pytest.mark.parametrize(
    ("host", "target"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("::", "127.0.0.1"), ("box", "box")]
)
def test_the_monitor_asks_the_server_where_it_listens(host: str, target: str) -> None:
    serving = Settings().serving.model_copy(update={"host": host})
    moved = with_ports(Settings().model_copy(update={"serving": serving}), 100)
    assert moved.monitor.target == f"{target}:{Settings().serving.port + 100}"


def test_what_listens_everywhere_is_reached_on_loopback() -> None:
    hosts = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1", "::1": "[::1]", "box": "box"}  # noqa: S104
    assert {host: reached(host) for host in hosts} == hosts


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9103/metrics"),
        ("0.0.0.0", "http://127.0.0.1:9103/metrics"),  # noqa: S104 - never bound here
        ("::1", "http://[::1]:9103/metrics"),
    ],
)
def test_metrics_are_where_the_settings_say(host: str, url: str) -> None:
    serving = Settings().serving.model_copy(update={"metrics_host": host})
    assert metrics_url(Settings().model_copy(update={"serving": serving}), "serving") == url
