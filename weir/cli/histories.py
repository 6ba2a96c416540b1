"""``weir histories``: the histories of users in Redis, for servers without a disk."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import Annotated

import typer

from weir.cli.logs import set_up_logging
from weir.cli.options import StoreOptions

__all__ = ["histories"]


def histories(
    *,
    redis: Annotated[
        str | None, typer.Option(help="Where to write: redis://HOST:PORT/DATABASE.", show_default="histories.redis")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep following until SIGTERM or Ctrl-C.")] = False,
    options: StoreOptions,
) -> None:
    """Bring the histories of users to Redis, for servers with `serving.histories = redis://...`.

    All users once, then those whom new commits touch. It can be killed and restarted at any moment.
    """
    session = options.open({"histories.redis": redis})
    set_up_logging(session.notes)
    from weir.serving.shared.loop import follow as run

    run(session.store, session.settings.histories, forever=follow)
