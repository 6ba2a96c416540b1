"""``weir promote``: an operator's word on which bundle is served, and how it is taken back."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

import getpass
import os
import socket
import time
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.errors import CommandError, UsageError
from weir.cli.options import Assign, ConfigFile, Debug, StoreUrl
from weir.cli.session import open_session

if TYPE_CHECKING:
    from contracts import BundleLog

__all__ = ["promote"]


def promote(
    version: Annotated[
        str | None, typer.Argument(help="The bundle; `weir inspect bundles` lists them.", show_default=False)
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, for those who find the pin.", show_default=False)] = "",
    unpin: Annotated[
        bool, typer.Option("--unpin", help="Lift the pin: the trainer promotes its next good bundle.")
    ] = False,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    debug: Debug = False,
) -> None:
    """Have servers answer from this bundle, whatever the gate said: an older one, or one that was held.

    It is pinned: trainers go on exporting, and nothing else is promoted until `weir promote --unpin`.
    """
    if (version is None) is not unpin:
        raise UsageError("name a VERSION to promote and pin it, or give --unpin to lift the pin; one of the two")
    session = open_session(config, store, assign)
    from contracts import BundleLog

    log = BundleLog(session.store)
    if version is None:
        _unpin(log)
        return
    from contracts import Pin

    try:
        log.set_pin(Pin(version=version, by=_operator(), at=time.time(), why=why))
    except (FileNotFoundError, ValueError):
        there = ", ".join(log.versions()) or "none"
        raise CommandError(f"{session.store.path('bundles')} holds no bundle {version}; there are: {there}") from None
    typer.echo(f"{version} is promoted and pinned until `weir promote --unpin`")


def _unpin(log: "BundleLog") -> None:
    from contracts import CorruptArtefactError

    try:
        pin = log.pin()
        was = "nothing was pinned" if pin is None else f"no longer {pin.sentence}"
    except CorruptArtefactError as error:
        was = f"the pin could not be read: {error}"
    log.lift_pin()
    typer.echo(f"{was}; the trainer promotes its next bundle that passes the gate")


def _operator() -> str:
    """Return who asks, as user@host; a container may know no name for the user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
