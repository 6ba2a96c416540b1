"""The parts that `weir evaluate` and `weir bench losses` share: the data, its split, and the rules of the test."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.terminal.options import Assign, ConfigFile, LogFiles, log_files
from weir.session import Session, given_options, open_session
from weir.text import option

if TYPE_CHECKING:
    from weir.readers import LogConfig
    from weir.trainer.offline.data import Interactions
    from weir.trainer.offline.evaluator import Rules
    from weir.trainer.offline.splits import Split

__all__ = ["ExperimentOptions", "SplitKind"]


_CUTOFFS: Final = (10, 20, 100)


class SplitKind(StrEnum):
    """The division of interactions into training, validation and test."""

    TEMPORAL = "temporal"
    LEAVE_ONE_OUT = "leave-one-out"
    RANDOM = "random"
    LABELLED = "labelled"


@dataclass(frozen=True)
class ExperimentOptions:
    """Options of a comparison: the data, its split, and the rules of the test. Nothing is written to a store."""

    data: Annotated[
        str,
        typer.Option(
            *("--log", "-l", "--data", "-d"),
            help="The log: file, folder or glob, path or URL; JSON Lines, Parquet, CSV, TSV, or text 'user item'. Or "
            "kafka://host:port/topic: what it has now. Or a store: its windows, as the pipeline committed them.",
        ),
    ]
    split: Annotated[
        SplitKind,
        typer.Option(
            "--split",
            help="By global time (80/10/10), the last two of each user, 20 % of each user at random, "
            "or column `split`.",
        ),
    ] = SplitKind.TEMPORAL
    cutoffs: Annotated[
        list[int] | None,
        typer.Option("--k", "-k", min=1, help="Cut-off of the metrics; may be repeated.", show_default="10, 20, 100"),
    ] = None
    filter_seen: Annotated[
        bool,
        typer.Option(
            "--filter-seen/--keep-seen",
            help="Exclude items that the user has already seen from the rankings, or keep them.",
        ),
    ] = True
    index_top: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rank only this many of the most popular items, and all test items.", show_default="all"
        ),
    ] = None
    cases: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many test cases, sampled at random.", show_default="all of them"),
    ] = None
    config: ConfigFile = None
    assign: Assign = None

    def open(self) -> Session:
        """Return the session of the command, with a small model unless the settings choose another."""
        return open_session(self.config, None, self.assign, base=_small_model(self.split))

    def read(self, session: Session, *, newest: int | None = None) -> "Interactions":
        """Read the interactions with the settings of the log: all rows, or the `newest` ones.

        Raises `UnreadableLogError` if other settings would read more of the log.
        """
        from weir.readers import is_topic
        from weir.trainer.offline.data import is_store, read_store

        if not is_topic(self.data) and is_store(self.data):
            return read_store(self.data, newest=newest)
        with log_files(session, self.data, newest) as files:
            found = self._read(files, session.settings.pipeline, newest)
        return replace(found, source=self.data, newest_rows=files.newest_rows or found.newest_rows)

    def _read(self, files: LogFiles, log: "LogConfig", newest: int | None) -> "Interactions":
        from weir.trainer.offline.data import InteractionsError, read_interactions

        try:
            interactions = read_interactions(files.path, log, newest=newest)
        except InteractionsError:
            self._check(files, log)
            raise
        if interactions.timestamps is None and self.split is SplitKind.TEMPORAL:
            self._check(files, log)
        return interactions

    def _check(self, files: LogFiles, log: "LogConfig") -> None:
        """Raise `UnreadableLogError` if, by a sample, other settings would read more of the log."""
        from weir.check.report import check_log
        from weir.check.text import require_readable

        try:
            report = check_log(log.model_copy(update={"log": files.path}))
        except FileNotFoundError:
            return
        if report.settings:
            require_readable(report, f"evaluate {self.arguments}")

    def divide(self, interactions: "Interactions") -> "Split":
        """Divide interactions into training, validation and test; raises `TooFewError` if the test part is empty."""
        from weir.trainer.offline import splits
        from weir.trainer.offline.data import TooFewError

        division = {
            SplitKind.TEMPORAL: splits.temporal,
            SplitKind.LEAVE_ONE_OUT: splits.leave_one_out,
            SplitKind.RANDOM: splits.random_per_user,
            SplitKind.LABELLED: splits.labelled,
        }[self.split](interactions)
        if not len(division.test):
            raise TooFewError(
                f"{self.data}: --split {self.split} leaves none of {len(interactions)} interactions to test on; "
                "add some"
            )
        return division

    @property
    def arguments(self) -> str:
        """The log and its settings as arguments of a command line."""
        given = [("--log", self.data), *given_options(self.config, None, self.assign)]
        return " ".join(option(name, value) for name, value in given)

    @property
    def rules(self) -> "Rules":
        """The rules of the test: a case per user for the random split, else a case per interaction."""
        from weir.trainer.offline.evaluator import Protocol, Rules

        protocol: Protocol = "user" if self.split is SplitKind.RANDOM else "interaction"
        return Rules(protocol, tuple(sorted(set(self.cutoffs or _CUTOFFS))), self.filter_seen, self.index_top)


def _small_model(split: SplitKind) -> dict[str, Any]:
    """Return nested settings that replace the trainer's defaults: a small tower that trains in minutes on one core.

    The random split has no order of events: a vector per user replaces the tower of histories. With histories every
    position is a training example: a batch of 64 histories of 50 items has up to 3,200 positives. Dropout is needed
    because epochs repeat a small log, and `embedding_memory` is 1 because training ends.
    """
    if split is SplitKind.RANDOM:
        free = {"normalised": False, "temperature": 1.0}
        tower: dict[str, Any] = {"kind": "matrix_factorisation", "dimension": 32, **free}
        size = 1024
    else:
        tower = {"kind": "recency", "dimension": 64, "history_length": 50, "expansion": 1, "dropout": 0.5}
        size = 64
    same: dict[str, Any] = {"negatives": {"mask_history": False}, "optimizer": {"embedding_memory": 1.0}}
    return {"trainer": {"batch_size": size, "tower": tower, **same}}
