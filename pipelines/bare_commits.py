"""Commits without rows, which need no run: positions, moves, retirements."""

import time

from weir.contracts import Commit, CommitLog, LogState
from weir.contracts.commit import requirements
from weir.pipelines.attempts import new_run

__all__ = ["append"]


def append(log: CommitLog, state: LogState, *requires: str, **fields: object) -> Commit:
    """Commit after a state, which follows; `requires` and `fields` are those of `Commit`.

    Raises `CommitTakenError` where another writer was faster.
    """
    at = state.cursor
    required = {
        "number": at.number,
        "writer": new_run(),
        "predecessor": at.checksum,
        "committed_at": time.time(),
        "sequence": at.sequence,
        "redaction": state.redaction,
    }
    requires = requirements(*requires, redaction=state.redaction)
    commit = Commit.model_validate(required | fields | {"requires": requires})
    log.append(commit)
    state.catch_up(log)
    return commit
