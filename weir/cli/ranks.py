"""Commands that run as several ranks of one training run, on this machine or on several nodes."""

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
"""Seconds between those of a launcher, and how many may be missing before its node counts as lost."""

_LAST_CALL_SECONDS: Final = 2
"""Nodes that have met wait so long for further ones."""


@dataclass(frozen=True)
class Nodes:
    """From `least` to `most` machines train together; they meet at `host` and `port`, which is on the first of them.

    Ranks go by the machines' own addresses, in the order of letters; None: as the way to `host` shows.
    """

    least: int
    most: int
    host: str
    port: int
    address: str | None

    @classmethod
    def of(cls, count: str | None, place: str | None, address: str | None) -> "Nodes | None":
        """Return what the options say, None for a single machine; raises `typer.BadParameter`."""
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
        """Return the settings by which the launchers of these machines find each other."""
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
        """Say whether the others meet on this machine, and no other launcher here has opened the port.

        A name would not tell: a machine may not know itself by the one that others call it.
        """
        for family, kind, _, _, address in self._known(socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                return True
        return False

    def own_address(self) -> str | None:
        """Return the address from which this machine reaches the place; None where nobody knows the place yet."""
        for family, kind, _, _, address in self._known(socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # chooses a way, and sends nothing
                return str(probe.getsockname()[0])
        return None

    def choose_interface(self) -> None:
        """Have gloo and NCCL use the interface that leads to the place, unless told otherwise.

        Left alone they take the one of the machine's name, which often is the loopback interface.
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
    """Return what tells a rank the options of the command that starts it."""
    found = ["--debug"] if DEBUGGING.get() else []
    for name, value in (("--config", options.config), ("--store", store)):
        found += [name, str(value)] if value is not None else []
    for pair in options.assign or ():
        found += ["--set", pair]
    return found


def is_first_rank() -> bool:
    """Say whether this process is the first rank, or the only one; a rank ends with the process that started it."""
    if "RANK" in os.environ:
        from weir.runtime.supervisor import die_with_parent

        # A rank without its launcher would wait for its peers forever.
        die_with_parent(signal.SIGKILL)
    return os.environ.get("RANK", "0") == "0"


def run_in_ranks(ranks: int, restarts: int, command: list[str], nodes: Nodes | None = None) -> None:
    """Run a command of weir in so many processes, as torchrun does: restart all when one fails, stop with them.

    With several nodes each runs as many, and all start again with those that are there when one is lost or comes.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="weir-ranks-") as folder:
        meeting = _alone(folder) if nodes is None else _together(nodes)
        # The launcher would share its store with the ranks by a port, or keep there where lost ranks were.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        launch = LaunchConfig(
            nproc_per_node=ranks,
            rdzv_backend="c10d",
            max_restarts=restarts,
            monitor_interval=0.2,
            # Ranks write to the terminal. Left alone the launcher makes a folder for each, and leaves them there.
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
            why = "nobody answers there" if isinstance(error, RendezvousConnectionError) else error
            raise CommandError(f"this machine does not meet the others at {where}: {why}") from error


def _together(nodes: Nodes) -> Mapping[str, Any]:
    """Return the settings by which launchers of several nodes find each other."""
    nodes.choose_interface()
    return nodes.meeting()


def _alone(folder: str) -> Mapping[str, Any]:
    """Return the settings by which a single launcher and its ranks meet, in files of a private folder.

    torchrun itself opens a port on all interfaces, without authentication.
    """
    from weir.trainer.ranks.workers import RENDEZVOUS

    os.environ[RENDEZVOUS] = f"{folder}/ranks"
    return {
        "min_nodes": 1,
        "max_nodes": 1,
        "run_id": str(uuid.uuid4()),
        "rdzv_endpoint": f"{folder}/launcher",
        # Nobody waits for the signs of life, and each would make the file longer.
        "rdzv_configs": {"store_type": "file", "keep_alive_interval": 86400},
        "local_addr": "127.0.0.1",
    }
