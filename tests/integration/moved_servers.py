"""Clients that live long, whose servers move: ``python -m tests.integration.moved_servers NAME=ADDRESS...``.

Run where the addresses have a name (`tests.integration.named_hosts`). Each asks again and again, and prints its name
with how many answers it has.
"""

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import redis

from weir.contracts import Store
from weir.pipelines.kafka_config import BrokerAwayError, RegistryConfig
from weir.pipelines.sources.kafka.avro import Registry
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.client import RetrievalClient, RetrievalError
from weir.serving.histories.redis_database import connect


def say(name: str, value: int) -> None:
    sys.stdout.write(json.dumps([name, value]) + "\n")
    sys.stdout.flush()


def ask(name: str, question: Callable[[], object], *problems: type[Exception]) -> None:
    """Ask for ever; count answers."""
    answers = itertools.count(1)
    while True:
        with suppress(*problems):
            question()
            say(name, next(answers))
        time.sleep(0.2)


def registry(address: str) -> None:
    """Ask a schema registry for schemas that it does not have, each once: that is an answer, too."""
    client, numbers = Registry(RegistryConfig(url=f"http://{address}"), 2.0), itertools.count(1000)
    ask("registry", lambda: client.schema(next(numbers)), BrokerAwayError)


def database(address: str) -> None:
    ask("redis", connect(f"redis://{address}/0", 2.0).ping, redis.RedisError)


def store(address: str) -> None:
    """Write to an object store, whose endpoint the environment names."""
    assert address in os.environ["FSSPEC_S3_ENDPOINT_URL"]
    ask("store", partial(Store("s3://bucket/store").write, "probe", b"1"), Exception)


def server(address: str) -> None:
    with RetrievalClient(f"dns:///{address}", timeout=2) as client:
        ask("server", client.info, RetrievalError)


def server_async(address: str) -> None:
    async def run() -> None:
        answers = itertools.count(1)
        async with AsyncRetrievalClient(f"dns:///{address}", timeout=2) as client:
            while True:
                with suppress(RetrievalError):
                    await client.info()
                    say("server-async", next(answers))
                await asyncio.sleep(0.2)

    asyncio.run(run())


ROLES = {"registry": registry, "redis": database, "store": store, "server": server, "server-async": server_async}


def main(clients: list[str]) -> None:
    for name, address in (client.split("=") for client in clients):
        threading.Thread(target=ROLES[name], args=(address,), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
