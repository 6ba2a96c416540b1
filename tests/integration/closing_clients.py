"""Open and close clients with a token again and again, as a process in which gRPC has nothing else to do.

    python -m tests.integration.closing_clients blocking|asyncio TARGET CLIENT_CONFIG

A thread of gRPC that drops a token waits for Python's lock. Here it does so whenever the last channel is closed, as it
happens by chance where many threads want that lock. A process that hangs ends after some seconds with its stacks.
"""

import asyncio
import faulthandler
import gc
import sys
import threading
import time
from contextlib import closing

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access.channel import AsyncChannel, Channel, SentToken
from weir.serving.access_config import ClientConfig
from weir.serving.client import CHANNEL_OPTIONS

_ROUNDS = 30
_DROPPED = threading.Event()


def _drop_slowly(_: SentToken) -> None:
    _DROPPED.set()
    time.sleep(0.03)


def _close_two(target: str, config: ClientConfig) -> None:
    with closing(Channel(target, None, CHANNEL_OPTIONS)):
        with Channel(target, config, CHANNEL_OPTIONS).open() as channel:
            # From now on gRPC alone holds the token.
            gc.collect()
            retrieval_pb2_grpc.RetrievalServiceStub(channel).GetInfo(pb.GetInfoRequest(), timeout=10)
        del channel
        assert _DROPPED.wait(10), "gRPC holds the token of a closed channel"


async def _close_two_async(target: str, config: ClientConfig) -> None:
    async with AsyncChannel(target, None, CHANNEL_OPTIONS).open():
        async with AsyncChannel(target, config, CHANNEL_OPTIONS).open() as channel:
            gc.collect()
            await retrieval_pb2_grpc.RetrievalServiceStub(channel).GetInfo(pb.GetInfoRequest(), timeout=10)
        del channel
        assert _DROPPED.wait(10), "gRPC holds the token of a closed channel"


def main(kind: str, target: str, config: ClientConfig) -> None:
    """Close a channel that has called, and another one while the token of the first one is dropped."""
    SentToken.__del__ = _drop_slowly  # type: ignore[attr-defined]
    for _ in range(_ROUNDS):
        faulthandler.dump_traceback_later(20, exit=True)
        if kind == "blocking":
            _close_two(target, config)
        else:
            asyncio.run(_close_two_async(target, config))
        _DROPPED.clear()
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], ClientConfig.model_validate_json(sys.argv[3]))
