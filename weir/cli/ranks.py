"""Runs a command as several ranks of one training run, on this machine or on several nodes."""

import os
import re
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import typer

from weir.cli.terminal.command import DEBUGGING
from weir.cli.terminal.options import StoreOptions
from weir.errors import CommandError

__all__ = ["Nodes", "arguments_of", "is_first_rank", "run_in_ranks"]


_SIGNS_OF_LIFE: Final = {"keep_alive_interval": 1, "keep_alive_max_attempt": 5}
"""Heartbeats of a launcher: seconds between two, and how many may be missed before its node counts as lost."""

_LAST_CALL_SECONDS: Final = 2
"""Seconds for which nodes wait for further nodes, once the least number of nodes has met."""


@dataclass(frozen=True)
class Nodes:
    """The machines (nodes) that train together, between `least` and `most`; they meet at `host`:`port`.

    `host` is one of these machines. `address` is this machine's own address; None: its address on the route to `host`.
    Ranks are ordered by the machines' addresses, as text.
    """

    least: int
    most: int
    host: str
    port: int
    address: str | None

    @classmethod
    def of(cls, count: str | None, place: str | None, address: str | None) -> "Nodes | None":
        """Parse the options for several machines; None for a single machine. Raises `typer.BadParameter`.

        `count` is the number of machines or its range, `place` the meeting point, `address` this machine's address.
        """
        if count is None:
            if place or address:
                raise typer.BadParameter("has a meaning with --nodes only", param_hint="--meet, --address")
            return None
        numbers = [int(each) for each in count.split(":")] if re.fullmatch(r"\d+(:\d+)?", count) else []
        if not numbers or not 1 <= numbers[0] <= numbers[-1]:
            raise typer.BadParameter(f"{count!r} is neither a number nor MIN:MAX, such as 1:4", param_hint="--nodes")
        found = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d+)", place or "")
        if found is None:
            came = "is missing" if place is None else f"is {place!r}"
            raise typer.BadParameter(
                f"{came}, must be host:port of the first machine, such as 10.0.0.1:29400", param_hint="--meet"
            )
        return cls(numbers[0], numbers[-1], found[1], int(found[2]), address)

    def meeting(self) -> Mapping[str, Any]:
        """Return the rendezvous settings by which the launchers of these machines find each other."""
        from weir.runtime.listening import in_url

        return {
            "min_nodes": self.least,
            "max_nodes": self.most,
            "run_id": "weir",
            "rdzv_endpoint": f"{in_url(self.host)}:{self.port}",
            "rdzv_configs": {
                **_SIGNS_OF_LIFE,
                "last_call_timeout": _LAST_CALL_SECONDS,
                "is_host": self.opens_the_place(),
            },
            "local_addr": self.address or self.own_address(),
        }

    def opens_the_place(self) -> bool:
        """Return whether the rendezvous is on this machine and its port is still free.

        Tried by binding, not by name: a machine may not know the name that others use for it.
        """
        for family, kind, _, _, address in self._known(socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                return True
        return False

    def own_address(self) -> str | None:
        """Return this machine's address on the route to the rendezvous; None if `host` does not resolve yet."""
        for family, kind, _, _, address in self._known(socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # chooses a route, sends no packet
                return str(probe.getsockname()[0])
        return None

    def choose_interface(self) -> None:
        """Make gloo and NCCL use the interface on the route to the rendezvous, unless the environment names one.

        By default they use the interface of the machine's name, often loopback.
        """
        import psutil

        own = self.own_address()
        for name, addresses in psutil.net_if_addrs().items():
            if own in {each.address for each in addresses}:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                os.environ.setdefault("NCCL_SOCKET_IFNAME", name)

    def _known(self, kind: socket.SocketKind) -> list[Any]:
        try:
            return socket.getaddrinfo(self.host, self.port, type=kind)
        except OSError:
            return []


# ruff: noqa: PLC0415 - imports wait until a command runs


def arguments_of(options: StoreOptions, store: str) -> list[str]:
    """Return the command-line arguments that pass a command's store and settings on to a rank."""
    found = ["--debug"] if DEBUGGING.get() else []
    for name, value in (("--config", options.config), ("--store", store)):
        found += [name, str(value)] if value is not None else []
    for pair in options.assign or ():
        found += ["--set", pair]
    return found


def is_first_rank() -> bool:
    """Return whether this process is rank 0 or the only one; also make a rank end with the process that started it."""
    if "RANK" in os.environ:
        from weir.runtime.parent import die_with_parent

        # A rank without its launcher would wait for its peers forever.
        die_with_parent(signal.SIGKILL)
    return os.environ.get("RANK", "0") == "0"


def run_in_ranks(ranks: int, restarts: int, command: list[str], nodes: Nodes | None = None) -> None:
    """Run a weir command in `ranks` processes on each node, as torchrun does, until they end.

    If a process fails, all restart, at most `restarts` times. When a node is lost or added, all restart on the nodes
    that are there. `nodes` None: this machine only.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="weir-ranks-") as folder:
        meeting = _alone(folder) if nodes is None else _together(nodes)
        # Keep the launcher's store apart: shared, it needs a port, and it would remember the places of lost ranks.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        launch = LaunchConfig(
            nproc_per_node=ranks,
            rdzv_backend="c10d",
            max_restarts=restarts,
            monitor_interval=0.2,
            # Ranks write to the terminal. By default the launcher leaves a folder of logs behind for each.
            logs_specs=DefaultLogsSpecs(f"{folder}/logs"),
            **meeting,
        )
        try:
            elastic_launch(launch, sys.executable)("-m", "weir", *command)
        except SignalException as stopped:
            raise typer.Exit(0 if stopped.sigval == signal.SIGTERM else 130) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            raise CommandError(f"rank {rank} {how}, after {restarts} restarts; its last lines are above") from error
        except RendezvousError as error:
            where = meeting["rdzv_endpoint"]
            why = "no process answers there" if isinstance(error, RendezvousConnectionError) else error
            raise CommandError(f"this machine does not meet the others at {where}: {why}") from error


def _together(nodes: Nodes) -> Mapping[str, Any]:
    """Return the torchrun settings of a launcher on one of several nodes."""
    nodes.choose_interface()
    return nodes.meeting()


def _alone(folder: str) -> Mapping[str, Any]:
    """Return the rendezvous settings of a single launcher: files in a private folder.

    torchrun by default opens a port on all interfaces, without authentication.
    """
    from weir.trainer.ranks.workers import RENDEZVOUS

    os.environ[RENDEZVOUS] = f"{folder}/ranks"
    return {
        "min_nodes": 1,
        "max_nodes": 1,
        "run_id": str(uuid.uuid4()),
        "rdzv_endpoint": f"{folder}/launcher",
        # No one reads the heartbeats of a single launcher, and each would lengthen the file.
        "rdzv_configs": {"store_type": "file", "keep_alive_interval": 86400},
        "local_addr": "127.0.0.1",
    }
