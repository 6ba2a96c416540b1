"""What `weir evaluate` and `weir bench losses` share: the data, its split, and the rules of the test."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.errors import CommandError

if TYPE_CHECKING:
    from logs import LogConfig
    from trainer.offline.data import Interactions
    from trainer.offline.examination import Rules
    from trainer.offline.splits import Split

__all__ = [
    "Cases",
    "Cutoffs",
    "Data",
    "FilterSeen",
    "IndexTop",
    "Kind",
    "SplitKind",
    "base_settings",
    "prepare",
    "rules",
]


class SplitKind(StrEnum):
    """How interactions are divided into training, validation and test."""

    TEMPORAL = "temporal"
    LEAVE_ONE_OUT = "leave-one-out"
    RANDOM = "random"
    LABELLED = "labelled"


Data = Annotated[
    str,
    typer.Option("--data", "-d", help="Interactions: Parquet, JSON Lines or text 'user item'; path, glob or URL."),
]
Kind = Annotated[
    SplitKind,
    typer.Option(
        "--split",
        help="By global time (80/10/10), the last two of each user, 20 % of each user at random, or column `split`.",
    ),
]
Cutoffs = Annotated[list[int], typer.Option("--k", "-k", min=1, help="Cut-off of the metrics; may be repeated.")]
FilterSeen = Annotated[
    bool, typer.Option("--filter-seen/--keep-seen", help="Leave what a user already had out of the rankings, or not.")
]
IndexTop = Annotated[
    int | None,
    typer.Option(min=1, help="Rank only so many of the most popular items and all test items.", show_default="all"),
]
Cases = Annotated[
    int | None, typer.Option(min=1, help="Test cases at most, chosen at random.", show_default="all of them")
]


def base_settings(split: SplitKind) -> dict[str, Any]:
    """Return what stands in for the trainer's defaults: a small tower that learns in minutes on one core.

    Histories where there is an order, a vector per user where there is none. Every position of a history is learnt
    from, so that a batch of 64 histories has up to 3,200 positives.
    """
    if split is SplitKind.RANDOM:
        free = {"normalised": False, "temperature": 1.0}
        tower: dict[str, Any] = {"kind": "matrix_factorisation", "dimension": 32, **free}
        return {"trainer": {"batch_size": 1024, "tower": tower, "negatives": {"mask_history": False}}}
    tower = {"kind": "sasrec", "dimension": 64, "history_length": 50, "expansion": 1}
    return {"trainer": {"batch_size": 64, "tower": tower, "negatives": {"mask_history": False}}}


def prepare(data: str, split: SplitKind, log: "LogConfig") -> "tuple[Interactions, Split]":
    """Read the interactions by the settings of the log, and divide them."""
    from trainer.offline import splits
    from trainer.offline.data import read_interactions

    interactions = read_interactions(data, log)
    divide = {
        SplitKind.TEMPORAL: splits.temporal,
        SplitKind.LEAVE_ONE_OUT: splits.leave_one_out,
        SplitKind.RANDOM: splits.random_per_user,
        SplitKind.LABELLED: splits.labelled,
    }[split]
    division = divide(interactions)
    if not len(division.test):
        raise CommandError(
            f"{data}: --split {split} leaves none of {len(interactions)} interactions to test on; add some"
        )
    return interactions, division


def rules(split: SplitKind, cutoffs: list[int], *, filter_seen: bool, index_top: int | None) -> "Rules":
    """Return the rules of the test: a case per user where there is no order, else per interaction."""
    from trainer.offline.examination import Protocol, Rules

    protocol: Protocol = "user" if split is SplitKind.RANDOM else "interaction"
    return Rules(protocol, tuple(sorted(set(cutoffs))), filter_seen, index_top)
