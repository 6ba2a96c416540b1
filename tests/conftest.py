"""What holds for all tests."""

import gc
import logging
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.campaigns import hunter

if TYPE_CHECKING:
    from tests.integration.flink_cluster import Cluster
    from tests.integration.kafka_broker import Broker

# A deadline would be a timed test, and machines that run tests are busy. On CI hypothesis has none by itself.
if not settings().derandomize:
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


# Brokers and engines live for a minute here: compiling them as for days takes a fifth of the CPU of their tests.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Without a handler, the first record (Beam has one at its import) would set up one for a file that pytest closes.
logging.getLogger().addHandler(logging.NullHandler())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's collector from what stays to the end: imported modules and tests, millions of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Put back what a command has set up: its records would go to a file that is closed by then."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Broker]":
    """A real Kafka broker, one for all tests of a process: each test has topics of its own."""
    from tests.integration.kafka_broker import kafka  # noqa: PLC0415 - few tests need it

    with kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    """A real Flink with its job server and workers, one for all tests."""
    from tests.integration.flink_cluster import flink as cluster  # noqa: PLC0415 - few tests need it

    with cluster(tmp_path_factory.mktemp("flink")) as running:
        yield running


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what the campaigns of this process have counted to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["campaigns"] = hunter.packed()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process has counted; one that died has sent nothing."""
    hunter.add(getattr(node, "workeroutput", {}).get("campaigns", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of what the campaigns have counted."""
    if hunter.ROWS:
        terminalreporter.section("campaigns")
        for line in [*hunter.table(), *hunter.NOTES]:
            terminalreporter.write_line(line)
