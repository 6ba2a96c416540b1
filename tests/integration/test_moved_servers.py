"""Servers that come back at another address behind their name: each client that lives long finds them again.

Clients of Kafka are in `tests/integration/test_stream_source.py`. Flink, and the metrics that the page reads, are asked
over a connection of their own each time.
"""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.campaigns.lives import ROOT
from tests.integration.named_hosts import named_hosts
from tests.integration.object_store import minio
from tests.integration.relay import Relay, relayed
from tests.pipelines.sources.kafka.schema_registry import schema_registry
from tests.serving.histories.redis_server import RedisServer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store

NAME = "weir-servers.test"


def port(url: str) -> int:
    return int(urlsplit(url).port or 0)


def test_clients_find_their_servers_at_another_address(tmp_path: Path) -> None:
    hosts = named_hosts(tmp_path)
    bundles = Store(str(tmp_path / "store"))
    write_bundle(bundles, "v1", Catalogue.random())
    (tmp_path / "redis").mkdir()
    with ExitStack() as stack:
        database = RedisServer(tmp_path / "redis")
        stack.callback(database.stop)
        server = stack.enter_context(ServerProcess(bundles))
        server.serving("v1")
        environment = stack.enter_context(minio(tmp_path / "s3"))
        ports = {
            "registry": port(stack.enter_context(schema_registry()).url),
            "redis": database.port,
            "store": port(environment["FSSPEC_S3_ENDPOINT_URL"]),
            "server": port(f"grpc://{server.target}"),
            "server-async": port(f"grpc://{server.target}"),
        }
        relays = {name: stack.enter_context(relayed(one)) for name, one in ports.items()}
        _place(relays, "127.0.0.2")
        hosts.set({NAME: "127.0.0.2"})
        named = {name: f"{NAME}:{relay.port}" for name, relay in relays.items()}
        command = [sys.executable, "-m", "tests.integration.moved_servers", *(f"{n}={at}" for n, at in named.items())]
        process = subprocess.Popen(
            hosts.command(command),
            env=os.environ | environment | {"FSSPEC_S3_ENDPOINT_URL": f"http://{named['store']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        stack.callback(process.wait, 30)
        stack.callback(process.kill)
        answers = dict.fromkeys(ports, 0)
        threading.Thread(target=_listen, args=(process, answers), daemon=True).start()
        _wait_for_all(answers, process)
        for relay in relays.values():
            relay.stop()
        hosts.set({})
        time.sleep(5)
        _place(relays, "127.0.0.3")
        hosts.set({NAME: "127.0.0.3"})
        _wait_for_all(answers, process)


def _place(relays: dict[str, Relay], address: str) -> None:
    for relay in relays.values():
        relay.start(address)


def _listen(process: "subprocess.Popen[str]", answers: dict[str, int]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        name, value = json.loads(line)
        answers[name] = value


def _wait_for_all(answers: dict[str, int], process: "subprocess.Popen[str]", within: float = 60) -> None:
    """Wait until each client has some more answers than it has now."""
    before, end = dict(answers), time.monotonic() + within
    while waiting := [name for name, count in answers.items() if count < before[name] + 3]:
        assert process.poll() is None
        assert time.monotonic() < end, f"no answer to {waiting}"
        time.sleep(0.1)
