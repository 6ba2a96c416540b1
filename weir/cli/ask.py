"""``weir query`` and ``weir click``: act, and see the answer change."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

from typing import Annotated

import typer

from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput, StoreUrl, Target, Wanted
from weir.cli.session import open_session

__all__ = ["click", "query"]


def query(
    user: Annotated[str, typer.Argument(help="User id as the log spells it; in the demo anna-0, bela-17 and so on.")],
    k: Wanted = 10,
    exclude_seen: Annotated[
        bool, typer.Option("--exclude-seen", help="Leave out what the user is known to have interacted with.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every item instead of asking the index.")
    ] = False,
    target: Target = None,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Ask the server for a user's top items, next to their rank by popularity alone."""
    session = open_session(config, store, assign)
    from serving.client import RetrievalClient
    from weir.cli.answers import print_answer
    from weir.interact import Asker

    with RetrievalClient(target or session.target) as client:
        answer = Asker(client, session.store).ask(user, k, exclude_seen=exclude_seen, exact=exact)
    if json:
        session.print_json(answer)
    else:
        print_answer(session.out, answer)


def click(
    user: Annotated[str, typer.Argument(help="User id; a new one is as good.")],
    item: Annotated[str, typer.Argument(help="Item id that the user interacts with, now.")],
    k: Wanted = 10,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the server's answer changes, and show it.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 60.0,
    target: Target = None,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Append an event to the log, as any producer would, and see the user's top items change."""
    session = open_session(config, store, assign)
    from weir.interact import Asker, append_event
    from weir.text import plain

    if not wait:
        event = append_event(session.store, session.settings.pipeline, user, item)
        if json:
            session.print_json(event)
        else:
            session.out.print(plain(f"{user} -> {item}: appended to {event.segment}"))
        return
    from serving.client import RetrievalClient
    from weir.cli.answers import print_change

    with RetrievalClient(target or session.target) as client:
        asker = Asker(client, session.store)
        change = asker.click(session.settings.pipeline, user, item, k, timeout)
    if json:
        session.print_json(change)
    else:
        print_change(session.out, change)
