"""Which windows have panes before a run.

A run says only up to which commit: what it carries is copied to every transform, and must not grow with the age of the
store. Every process reads the panes from the commits, keeps them, and from run to run reads only what is new.
"""

from threading import Lock

from weir.contracts import CommitLog, LogState, Store
from weir.contracts.commits import Cursor
from weir.contracts.log_state import Panes

__all__ = ["panes_before", "redacted_before", "remember_panes"]

_NONE = Panes(count=0, commit=-1)

_lock = Lock()
_known: dict[str, LogState] = {}


def remember_panes(store: Store, state: LogState) -> None:
    """Keep the panes of a state that this process has opened for itself, so that they are not read again."""
    own = {"starts": [*state.starts], "panes": [*state.panes], "sources": {}, "counted": {}, "listed": {}}
    with _lock:
        _known.clear()
        _known[store.url] = state.model_copy(update=own)


def panes_before(store: Store, at: Cursor, start_ms: int) -> Panes:
    """Return the panes of a window in the commits before a cursor; without any there are 0, the last in commit -1.

    Raises what `CommitLog.next` raises.
    """
    with _lock:
        return _state_at(store, at).panes_of(start_ms) or _NONE


def redacted_before(store: Store, at: Cursor) -> dict[int, int]:
    """Return which panes have been redacted in the commits before a cursor (`LogState.redacted`); raises likewise."""
    with _lock:
        return _state_at(store, at).redacted


def _state_at(store: Store, at: Cursor) -> LogState:
    state = _known.get(store.url)
    if state is None or (state.cursor != at and state.cursor.number >= at.number):
        # Nothing is known, or too much: that of a later run, or of another store at this place.
        state = LogState.open(store, at.number)
    state.catch_up(CommitLog(store), at.number)
    _known.clear()
    _known[store.url] = state
    return state
