"""How much ``weir evaluate`` may cost, and what ``--quick`` leaves out to answer within two minutes on two cores."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.offline import ExperimentOptions
from weir.session import Session

if TYPE_CHECKING:
    from weir.trainer.offline.compare import Plan
    from weir.trainer.offline.data import Interactions

__all__ = ["Effort"]

_STEPS: Final = 5000
_VALIDATION_CASES: Final = 2000

_QUICK_STEPS: Final = 1500
_QUICK_ROWS: Final = 1_000_000
_QUICK_INTERACTIONS: Final = 300_000
_QUICK_SECONDS: Final = 75.0
"""From the start of the command to the end of training."""
_LEAST_SECONDS: Final = 15.0
"""Of training, however long reading took."""
_QUICK_SCORES: Final = 200_000_000
"""A case has one for each item: they are what a test costs."""
_QUICK_PEERS: Final = 4000
"""Items of which the peers' matrices are made."""
_LEAST_CASES: Final = 1000


@dataclass(frozen=True)
class Effort:
    """How much of the log is used, and how long training goes on."""

    quick: Annotated[
        bool, typer.Option("--quick", help="Answer within two minutes on two cores, from a sample of a large log.")
    ] = False
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, at most.", show_default="5000; 1500 with --quick")
    ] = None
    patience: Annotated[
        int, typer.Option(min=1, help="Validations in a row without a better one that end training.")
    ] = 5

    seeds: Annotated[
        int, typer.Option(min=1, help="Train so many models with other random draws; figures are means over them.")
    ] = 1

    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for vectors, scores and ranks of the test as Parquet files."),
    ] = None

    @property
    def largest_peers(self) -> int:
        """Most items of which item-kNN and EASE are made."""
        from weir.trainer.offline.peers.contest import LARGEST

        return _QUICK_PEERS if self.quick else LARGEST

    def read(self, session: Session, options: ExperimentOptions) -> "tuple[Interactions, list[str]]":
        """Read the log, all of it or some users of its last rows; return in words what was sampled, if anything."""
        from weir.trainer.offline.users import sample_users

        if not self.quick:
            return options.read(session), []
        read = options.read(session, newest=_QUICK_ROWS)
        some = sample_users(read, _QUICK_INTERACTIONS)
        sampled = []
        if read.newest_rows is not None:
            from weir.readers import has_ending

            # What is packed can only be read from its start.
            place = "first" if has_ending(options.data, [".gz"]) else "last"
            sampled.append(f"the {place} {read.newest_rows:,} rows of the log")
        if some is not read:
            chosen = f"{len(some.user_ids):,} of {len(read.user_ids):,} users, at random"
            sampled.append(f"{chosen}, with {len(some):,} of {len(read):,} interactions")
        return some, sampled

    def plan(
        self, session: Session, options: ExperimentOptions, interactions: "Interactions", started: float
    ) -> "tuple[Plan, list[str]]":
        """Return what to train and test, and in words which test cases are left out; `started` is the command's start.

        Raises `TooFewError` where none are left to test on.
        """
        from weir.trainer.offline.compare import Plan
        from weir.trainer.offline.fit import Budget

        division, config = options.divide(interactions), session.settings.trainer
        if not self.quick:
            budget = Budget(self.steps or _STEPS, patience=self.patience)
            return Plan(interactions, division, config, budget, options.rules, options.cases, _VALIDATION_CASES), []
        cases = max(_LEAST_CASES, _QUICK_SCORES // len(interactions.item_ids))
        tested = options.cases or cases
        limit = max(_LEAST_SECONDS, _QUICK_SECONDS - (time.monotonic() - started))
        budget = Budget(self.steps or _QUICK_STEPS, patience=self.patience, seconds=limit)
        plan = Plan(interactions, division, config, budget, options.rules, tested, min(cases, _VALIDATION_CASES))
        left_out = tested < len(division.test)
        return plan, [f"{tested:,} of {len(division.test):,} test cases, at random"] if left_out else []
