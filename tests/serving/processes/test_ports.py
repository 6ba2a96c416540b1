import errno
import socket

import pytest

from tests.ports import free_port
from weir.runtime.listening import CannotListenError
from weir.serving.config import ServingConfig
from weir.serving.processes.ports import reserved


def listening(port: int, *, shared: bool) -> socket.socket:
    found = socket.socket()
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    found.listen()
    return found


def test_free_ports_get_numbers_that_all_processes_can_listen_on() -> None:
    with reserved(ServingConfig(port=0, http_port=0, metrics_port=0)) as config:
        assert config.health_port is None
        assert config.http_port is not None
        assert len({0, config.port, config.http_port}) == 3
        for port in (config.port, config.http_port):
            with listening(port, shared=True), listening(port, shared=True), socket.socket() as client:
                client.connect(("127.0.0.1", port))


def test_the_reserving_socket_gets_no_connections() -> None:
    with (
        reserved(ServingConfig(port=0)) as config,
        socket.socket() as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect(("127.0.0.1", config.port))


@pytest.mark.parametrize("shared", [True, False])
def test_a_port_of_another_server_is_refused_by_name(shared: bool) -> None:
    port = free_port()
    with (
        listening(port, shared=shared),
        pytest.raises(CannotListenError, match=f"serving.port on host '127.0.0.1', port {port}") as refusal,
        reserved(ServingConfig(port=port)),
    ):
        pass
    assert refusal.value.errno == errno.EADDRINUSE
    with reserved(ServingConfig(port=port)) as config:
        assert config.port == port
