"""``weir promote``: an operator chooses the bundle that is served, or leaves the choice to the trainer again."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import getpass
import os
import socket
import time
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.options import StoreOptions
from weir.errors import CommandError, UsageError

if TYPE_CHECKING:
    from contracts import BundleLog

__all__ = ["promote"]


def promote(
    *,
    version: Annotated[
        str | None, typer.Argument(help="The bundle; `weir inspect bundles` lists them.", show_default=False)
    ] = None,
    why: Annotated[str, typer.Option(help="Reason, shown with the pin.", show_default=False)] = "",
    unpin: Annotated[
        bool, typer.Option("--unpin", help="Remove the pin: the trainer promotes its next bundle that passes the gate.")
    ] = False,
    options: StoreOptions,
) -> None:
    """Serve this bundle whatever the gate decided: an older one, or one that was held back.

    The bundle is pinned: trainers keep exporting, but nothing else is promoted until `weir promote --unpin`.
    """
    if (version is None) is not unpin:
        raise UsageError("name a VERSION to promote and pin it, or give --unpin to remove the pin; one of the two")
    session = options.open()
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
    """Return who runs the command, as user@host; in a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
