"""Several machines that train together: how many there are, and how they find each other."""

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import typer

__all__ = ["Nodes"]

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
        from weir.contracts.listening import in_url  # noqa: PLC0415 - imports wait until a command runs

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
        import psutil  # noqa: PLC0415 - only trainers have it

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
