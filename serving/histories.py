"""The histories of users, from the committed windows: in memory, in commit order, rebuilt at every start."""

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from contracts import (
    PADDING_KEY,
    Events,
    Histories,
    ItemKeys,
    Label,
    Store,
    UserKeys,
    WindowLog,
    WindowManifest,
    columns,
)

__all__ = ["Known", "UserHistories"]

log = logging.getLogger(__name__)

_COLUMNS = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL]


class Known(NamedTuple):
    """What is known of n users: their newest `positives` and `negatives`, each (n, length), left-padded."""

    positives: ItemKeys
    negatives: ItemKeys


class _State(NamedTuple):
    positives: Histories
    negatives: Histories


@dataclass
class UserHistories:
    """Follows the windows of a store.

    One thread calls `catch_up`; any number may call `lookup` meanwhile: a window appears as a whole, by one
    assignment. Each user's last items are kept, as many as the windows' own histories hold.
    """

    store: Store
    sequence: int = -1
    _state: _State | None = None
    _log: WindowLog = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._log = WindowLog(self.store)

    @property
    def users(self) -> int:
        """How many users have a positive event."""
        return 0 if self._state is None else len(self._state.positives.users)

    def catch_up(self) -> int:
        """Add what has been committed since the last call; return the number of windows.

        Raises `CorruptArtefactError`; the windows before the damaged one have been added.
        """
        manifests = self._log.committed(after=self.sequence)
        for manifest in manifests:
            self._state = self._extended(manifest)
            self.sequence = manifest.sequence
        return len(manifests)

    def lookup(self, users: UserKeys) -> Known:
        """Return what is known of the given users; all padding for those unknown."""
        state = self._state
        if state is None:
            nothing = ItemKeys(np.full((len(users), 1), PADDING_KEY, np.int64))
            return Known(nothing, nothing)
        return Known(state.positives.lookup(users), state.negatives.lookup(users))

    def _extended(self, manifest: WindowManifest) -> _State:
        table = self._log.all_examples(manifest, _COLUMNS)
        users, items, times, labels = (table[name].to_numpy() for name in _COLUMNS)
        old = self._state or _State(Histories.empty(manifest.history_length), Histories.empty(manifest.history_length))
        return _State(
            *(
                _with(history, Events(users[chosen], items[chosen], times[chosen], np.ones(chosen.sum(), np.bool_)))
                for history, chosen in zip(old, (labels == Label.POSITIVE, labels == Label.NEGATIVE), strict=True)
            )
        )


def _with(history: Histories, events: Events) -> Histories:
    """Return a copy with the events; readers may still hold the old one, whose arrays are never written to."""
    longer = Histories(history.users, history.items, history.times)
    longer.extend(events)
    return longer
