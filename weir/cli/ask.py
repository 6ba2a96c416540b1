"""``weir query`` and ``weir click``: ask for a user's items, and see how an event changes them."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.terminal.options import JsonOutput, StoreOptions, Target, Wanted
from weir.errors import UsageError

if TYPE_CHECKING:
    from weir.serving.client import RetrievalClient

__all__ = ["click", "query"]


def query(
    *,
    user: Annotated[str, typer.Argument(help="User id, as in the log; the demo has anna-0, bela-17 and so on.")],
    k: Wanted = 10,
    exclude_seen: Annotated[
        bool, typer.Option("--exclude-seen", help="Leave out items that the user has interacted with.")
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Score every item instead of searching the index.")] = False,
    all_tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "--all-tag", help="Only items with this tag; repeated: with all.", show_default="none"),
    ] = None,
    any_tag: Annotated[
        list[str] | None,
        typer.Option("--any-tag", help="Only items with this tag; repeated: with one of them.", show_default="none"),
    ] = None,
    none_tag: Annotated[
        list[str] | None, typer.Option("--none-tag", help="No items with this tag; repeatable.", show_default="none")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            metavar="NAME=VALUE",
            help="What is known of the user, as the log names it; a repeated NAME has several values.",
            show_default="none",
        ),
    ] = None,
    max_per_tag: Annotated[
        int | None, typer.Option(min=1, help="Most items with the same tag.", show_default="any number")
    ] = None,
    target: Target = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Show a user's top items, each with its popularity rank; tags come from the server's catalogue."""
    session = options.open()
    from weir.interact import Asker, WantedTags, print_answer
    from weir.serving.client import RetrievalClient

    tags = WantedTags(any=any_tag or (), all=all_tag or (), none=none_tag or (), most=max_per_tag)
    with RetrievalClient(target or session.target, config=session.settings.client) as client:
        said = _features(feature or [], client)
        answer = Asker(client, session.store).ask(
            user, k, exclude_seen=exclude_seen, exact=exact, tags=tags, features=said
        )
    if json:
        session.print_json(answer)
    else:
        print_answer(session.out, answer)


def _features(given: list[str], client: "RetrievalClient") -> dict[str, list[str] | float]:
    """Parse the features given by --feature; the server's info tells which of them are numbers."""
    found: dict[str, list[str] | float] = {}
    numbers = client.info().user_features["dense"] if given else ()
    for one in given:
        name, is_pair, value = one.partition("=")
        if not (name and is_pair):
            raise UsageError(f"--feature {one}: must be NAME=VALUE")
        if name not in numbers:
            values = found.setdefault(name, [])
            if isinstance(values, list):
                values.append(value)
            continue
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--feature {one}: {name} is a number, {value!r} is none") from None
    return found


def click(
    *,
    user: Annotated[str, typer.Argument(help="User id; it may be new.")],
    item: Annotated[str, typer.Argument(help="Id of the item that the user interacts with.")],
    k: Wanted = 10,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the server's answer changes, and show it.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Longest wait, in seconds.")] = 60.0,
    token: Annotated[
        str | None,
        typer.Option(
            help="The attribution_token of the answer that led to it: `weir query --json`.", show_default="none"
        ),
    ] = None,
    target: Target = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Append an event to the log, as a producer would, and show how the user's top items change."""
    session = options.open()
    from weir.interact import Asker, append_event
    from weir.text import plain

    if not wait:
        event = append_event(session.store, session.settings.pipeline, user, item, token)
        if json:
            session.print_json(event)
        else:
            session.out.print(plain(f"{user} -> {item}: appended to {event.segment}"))
        return
    from weir.interact import print_change
    from weir.serving.client import RetrievalClient

    with RetrievalClient(target or session.target, config=session.settings.client) as client:
        asker = Asker(client, session.store)
        change = asker.click(session.settings.pipeline, user, item, k, timeout, token=token)
    if json:
        session.print_json(change)
    else:
        print_change(session.out, change)
