"""Change the lasting settings of a store (`weir.pipelines.store_settings`).

A pipeline keeps its settings from start to end, and stops committing once the recorded ones have changed. So each row
is committed under the settings of its time: committed rows stay, and pending rows are read again under the new ones. A
window without a pane is then whole under the new settings; late rows of an older window make a pane under them.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from shlex import quote
from typing import Final

from pydantic import JsonValue

from weir.contracts import CommitLog, CommitTakenError, LogState, Store, read_format
from weir.contracts.storage.format import SettingsChange, StoreSettings, read_settings, write_settings
from weir.pipelines.runs.run_registry import append, only_driver, only_writer
from weir.pipelines.sources.source import check_home
from weir.pipelines.store_settings import FIXED, OUTSIDE_PIPELINE, LayoutError, has_secret, recorded, refusal

__all__ = ["change"]

_OF_TIME: Final = ("pipeline.timestamp_unit", "pipeline.time_zone")
"""Settings that move a row to another window, where it would count again; so does `columns.timestamp`."""


def change(store: Store, wanted: Mapping[str, JsonValue]) -> SettingsChange | None:
    """Set the recorded settings of a store to the `wanted` values, by name; return the change, None if all equal.

    Raises
    ------
    LayoutError
        If the store does not exist, for `FIXED` settings, for a URL that may hold a secret, and for settings of time
        while rows of open windows are pending.
    BusyStoreError
        While a pipeline runs on this local store. On an object store the pipeline ends itself before its next commit.
    MovedStoreError
        If the log continues in another store.
    """
    with ExitStack() as stack:
        if any(name not in OUTSIDE_PIPELINE for name in wanted):
            stack.enter_context(only_driver(store))
            stack.enter_context(only_writer(store))
        # If the record is lost, this records the given settings, and the next pipeline the others.
        known = recorded(store, may_be_lost=True)
        after = {name: value for name, value in wanted.items() if name not in known or known[name] != value}
        _check(store, known, after)
        if not after:
            return None
        kept = read_settings(store, may_be_lost=True)
        before = kept or StoreSettings()
        old = {name: known[name] for name in after if name in known}
        log, state = CommitLog(store), LogState.open(store)
        is_of_rows = any(name not in OUTSIDE_PIPELINE for name in after)
        while True:
            if is_of_rows:
                check_home(store, state)
                _check_time(store, state, known, after)
            made = SettingsChange(
                changed_at=time.time(),
                commit=state.number + 1,
                from_ms=_first_whole(store, state),
                before=old,
                after=after,
            )
            whole = StoreSettings(values=before.values | after, changes=(*before.changes, made))
            if not write_settings(store, whole, kept):
                raise LayoutError(f"{store.url}: another process has just recorded its settings: try again")
            kept = whole
            if not is_of_rows or not state.sources:
                return made
            # A run in flight on an object store finds this commit number taken, and then the changed settings.
            try:
                append(log, state)
            except CommitTakenError:
                state.catch_up(log)
            else:
                return made


def _check(store: Store, known: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> None:
    """Raise `LayoutError` if there is no store, or a setting must not change or be recorded."""
    if read_format(store) is None:
        raise LayoutError(f"{store.url}: there is no such store; its first pipeline records the settings")
    for name, value in after.items():
        if name in FIXED:
            raise LayoutError(refusal(store, name, value, known.get(name)))
        if name in OUTSIDE_PIPELINE and has_secret(value):
            raise LayoutError(
                f"{name}: its URL may hold a secret, which a store must not: name it without password and query, and "
                "let the environment of the servers hold the secret"
            )


def _check_time(store: Store, state: LogState, known: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> None:
    """Raise `LayoutError` for settings of time while rows are pending: they would count in a second window, too."""
    moved = [name for name in after if name in _OF_TIME or (name == "pipeline.columns" and _moves(known, after))]
    if moved and not all(span.is_done for span in state.sources.values()):
        raise LayoutError(
            f"{', '.join(moved)}: rows of open windows are read again, and would count in other windows, too: commit "
            f"them first, with `weir ingest --store {quote(store.url)}` without --follow, then change it"
        )


def _moves(known: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> bool:
    """Return whether the timestamp column changes."""
    columns = [values.get("pipeline.columns") for values in (known, after)]
    before, new = (names.get("timestamp") if isinstance(names, dict) else None for names in columns)
    return before != new


def _first_whole(store: Store, state: LogState) -> int | None:
    """Return the start (ms) of the first window under new settings: the end of the newest window with a pane.

    Without a pane it is the horizon, or None without a horizon.
    """
    form = read_format(store)
    if not state.starts or form is None or form.layout is None:
        return None if state.horizon is None else state.horizon.ms
    return state.starts[-1] + form.layout.window_ms
