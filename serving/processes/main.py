"""``python -m weir.serving.processes.main``: one of the processes that answer; its parent starts it, nobody else.

Its arguments are the descriptors of two sockets, of a `Channel` and of a `ParentLink`.
"""

import logging
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import Final

import uvloop

from weir.serving.processes.channel import Channel
from weir.serving.processes.link import ParentLink
from weir.serving.processes.member import Member
from weir.serving.server import Server, prepare

__all__ = ["main"]

log = logging.getLogger(__name__)

_LEAST_PATIENCE: Final = 10.0
"""Seconds that the event loop may not have run, at least: it says every second that it does."""


def main(channel: int, link: int) -> None:
    """Answer until SIGTERM."""
    # Ctrl-C reaches all processes of a terminal: the parent tells this one when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = ParentLink(Connection(link))
    try:
        store, config, files = parent.receive_start().arguments
        parent.patience = max(config.max_batch_seconds, _LEAST_PATIENCE)
        prepare(config)
        member = Member(Channel(socket.socket(fileno=channel)), parent, config.threads)
        uvloop.run(Server(store, config, registry=parent.registry, files=files, member=member).run())
    except Exception:
        log.exception("this process ends")
        sys.exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
