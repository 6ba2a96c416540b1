import contextlib
import logging
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from weir.runtime import metrics_server as exposition
from weir.runtime.metrics_server import exposed


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("weir_questions", "Questions.", registry=registry).inc(42)
    return registry


def port_of(where: str) -> int:
    found = re.fullmatch(r"port (\d+) of \S+", where)
    assert found is not None
    return int(found[1])


def scraped(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


@contextlib.contextmanager
def idle(port: int, count: int, *, says: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that begin a request and never end it."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(count)]
        for one in opened:
            with contextlib.suppress(OSError):
                one.sendall(says)
        yield opened


def test_it_shows_the_registry_where_it_is_told(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), exposed(registry, "127.0.0.1", 0) as where:
        assert caplog.messages == [f"metrics on {where}"]
        assert where.endswith(" of 127.0.0.1")
        assert "weir_questions_total 42.0" in scraped(port_of(where))
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port_of(where)), timeout=1)
    with pytest.raises(OSError, match="refused"):
        scraped(port_of(where))


def test_every_interface_is_a_choice(registry: CollectorRegistry) -> None:
    with exposed(registry, "0.0.0.0", 0) as where:  # noqa: S104 - this is what is tested
        assert "weir_questions_total" in scraped(port_of(where), "127.0.0.2")


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_the_address_may_be_of_version_six(registry: CollectorRegistry) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with exposed(registry, "::1", 0) as where:
        assert "weir_questions_total" in scraped(port_of(where), "[::1]")


def test_a_port_that_is_taken_is_an_error(registry: CollectorRegistry) -> None:
    with (
        exposed(registry, "127.0.0.1", 0) as where,
        pytest.raises(OSError, match="in use"),
        exposed(registry, "127.0.0.1", port_of(where)),
    ):
        pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_named(registry: CollectorRegistry, host: str) -> None:
    with pytest.raises(OSError, match=f"metrics on host '{host}', port 0"), exposed(registry, host, 0):
        pass


@pytest.mark.parametrize("says", [b"", b"GET /metrics HTTP/1.0\r\nX: "])
def test_idle_connections_do_not_keep_prometheus_out(registry: CollectorRegistry, says: bytes) -> None:
    before = threading.active_count()
    with exposed(registry, "127.0.0.1", 0) as where, idle(port_of(where), 300, says=says):
        start = time.monotonic()
        assert "weir_questions_total" in scraped(port_of(where))
        assert time.monotonic() - start < 3
        # The newest displaced the oldest: threads are bounded, whatever is opened.
        deadline = time.monotonic() + 5
        while threading.active_count() > before + exposition.CONNECTIONS + 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before + exposition.CONNECTIONS + 2


def test_who_takes_too_long_is_cut_off_without_a_word(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What goes to the log is no word on standard error, wherever another test has left the log.
    monkeypatch.setattr(exposition.logger, "propagate", False)
    monkeypatch.setattr(exposition, "CONNECTION_SECONDS", 0.3)
    with exposed(registry, "127.0.0.1", 0) as where, idle(port_of(where), 1, says=b"GET /metrics HT") as [slow]:
        ends = time.monotonic() + 3
        with contextlib.suppress(OSError):
            while slow.recv(1) and time.monotonic() < ends:
                slow.sendall(b"T")  # a byte now and then resets any time-out of a single read
        assert time.monotonic() < ends
        assert "weir_questions_total" in scraped(port_of(where))
    assert capfd.readouterr().err == ""


def test_who_does_not_read_the_answer_is_cut_off_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What goes to the log is no word on standard error, wherever another test has left the log.
    monkeypatch.setattr(exposition.logger, "propagate", False)
    monkeypatch.setattr(exposition, "CONNECTION_SECONDS", 0.3)
    large = CollectorRegistry()
    filled = Counter("weir_long", "Long.", ("name",), registry=large)
    for number in range(20_000):
        filled.labels(f"{number:0300d}")
    before = threading.active_count()
    with (
        exposed(large, "127.0.0.1", 0) as where,
        idle(port_of(where), 1, says=b"GET /metrics HTTP/1.0\r\n\r\n"),
    ):
        deadline = time.monotonic() + 20
        time.sleep(0.5)
        while threading.active_count() > before + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before + 1
    assert capfd.readouterr().err == ""
