"""What ``weir evaluate --quick`` leaves out, so that it answers within two minutes on two cores."""

from typing import TYPE_CHECKING, Final

from weir.cli.offline import ExperimentOptions

if TYPE_CHECKING:
    from logs import LogConfig
    from trainer.offline.data import Interactions

__all__ = ["QUICK_CASES", "QUICK_STEPS", "quick_seconds", "read_some"]

QUICK_STEPS: Final = 1500
QUICK_CASES: Final = 2000

_ROWS: Final = 1_000_000
_INTERACTIONS: Final = 300_000
_SECONDS: Final = 75.0
"""From the start of the command to the end of training."""
_LEAST_SECONDS: Final = 15.0


def quick_seconds(passed: float) -> float:
    """Return the seconds that are left for training; `passed` are those since the command was started."""
    return max(_LEAST_SECONDS, _SECONDS - passed)


def read_some(options: ExperimentOptions, log: "LogConfig") -> "tuple[Interactions, list[str]]":
    """Read the end of a log and choose users of it; return what was sampled in words, nothing where all was read."""
    from trainer.offline.users import sample_users  # noqa: PLC0415 - imports wait until a command runs

    everything = options.read(log, newest=_ROWS)
    some = sample_users(everything, _INTERACTIONS)
    sampled = []
    if everything.newest_rows is not None:
        # What is packed can only be read from its start.
        place = "first" if options.data.endswith(".gz") else "last"
        sampled.append(f"the {place} {everything.newest_rows:,} rows of the log")
    if some is not everything:
        of = f"{len(some.user_ids):,} of {len(everything.user_ids):,} users, at random"
        sampled.append(f"{of}, with {len(some):,} of {len(everything):,} interactions")
    return some, sampled
