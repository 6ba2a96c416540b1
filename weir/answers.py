"""Print answers and click results on a terminal."""

from rich.console import Console
from rich.table import Table

from weir.interact import Answer, Change
from weir.text import in_words, plain

__all__ = ["print_answer", "print_change"]


def print_answer(console: Console, answer: Answer, before: Answer | None = None) -> None:
    """Print an answer; with an earlier one, also each item's rank in that."""
    table = Table(box=None, header_style="bold")
    columns = ["rank", "item", "score", "popularity rank", *(["before"] if before else [])]
    for name in columns:
        table.add_column(name, justify="left" if name == "item" else "right")
    ranks = {hit.item_id: hit.rank for hit in before.hits} if before else {}
    for hit in answer.hits:
        popular = "-" if hit.popularity_rank is None else str(hit.popularity_rank)
        was = [str(ranks.get(hit.item_id, "new"))] if before else []
        table.add_row(str(hit.rank), plain(hit.item_id), f"{hit.score:.4f}", popular, *was)
    console.print(table)
    if answer.fallback:
        console.print(plain(f"{answer.user_id} is unknown so far: these are the popular items"))
    if answer.missing_features:
        names = ", ".join(answer.missing_features)
        console.print(plain(f"the bundle knows no feature {names}: pipeline.user_features names those of the log"))
    if not answer.complete:
        console.print("there are no more items to show", highlight=False)
    if answer.seen_bounded:
        console.print(
            plain(f"{answer.user_id} has seen more items than are stored: some of these may have been seen before")
        )
    stages = ", ".join(f"{name} {value:.2f}" for name, value in answer.server_milliseconds.items() if name != "total")
    console.print(
        plain(
            f"bundle {answer.bundle_version}, newest event {in_words(answer.newest_event_age_seconds)} old, "
            f"{answer.total_milliseconds:.1f} ms ({stages})"
        )
    )


def print_change(console: Console, change: Change) -> None:
    """Print the effect of a click and, if the newest bundle is not served, the reason."""
    _print_change(console, change)
    if change.held:
        console.print(plain(f"newest bundle: {change.held}"), soft_wrap=True)


def _print_change(console: Console, change: Change) -> None:
    event = change.event
    console.print(plain(f"{event.user_id} -> {event.item_id}"))
    if not change.is_served:
        sentence = "is new: it changes answers once a bundle has it, after its window has been trained on"
        console.print(plain(f"the event is in the log; {event.item_id} {sentence}"), soft_wrap=True)
        return
    if change.seconds is None:
        stage = "the server has not taken it in" if change.is_committed else "the pipeline has not committed it"
        command = "weir serve" if change.is_committed else "weir ingest --follow"
        sentence = f"the answer has not changed in time, because {stage}: is `{command}` running?"
        console.print(sentence, highlight=False, soft_wrap=True)
        return
    if change.before.bundle_version == change.after.bundle_version:
        why = "by the click alone: the bundle is the same"
    else:
        why = "and a newer bundle was swapped in as well"
    console.print(f"the answer changed after {change.seconds:.1f} s, {why}", highlight=False)
    print_answer(console, change.after, change.before)
