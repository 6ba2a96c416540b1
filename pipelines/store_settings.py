"""Lasting settings: shared by all stages of a store and recorded in it at its creation.

Every stage takes them from the store. After the first commit, a given value that differs is refused by name;
`weir.pipelines.maintenance.change_settings` changes recorded values.
"""

import json
import logging
from collections.abc import Collection, Mapping
from shlex import quote
from typing import Final
from urllib.parse import urlsplit

from pydantic import JsonValue

from weir.contracts import CommitLog, Store, UserError, read_format
from weir.contracts.storage.format import StoreSettings, read_settings, write_settings
from weir.pipelines.config import PipelineConfig

__all__ = [
    "FIXED",
    "LASTING",
    "OUTSIDE_PIPELINE",
    "LayoutError",
    "check_unchanged",
    "contradicting",
    "has_secret",
    "recorded",
    "refusal",
    "remember",
    "settled",
    "spelled",
    "values_of",
]

logger = logging.getLogger(__name__)

FIXED: Final = tuple(f"pipeline.{name}" for name in ("window_seconds", "user_shards", "sketch", "secret_keys"))
"""Recorded in ``STORE.json``: with other values rows would count twice, or sketches could not be merged."""

OUTSIDE_PIPELINE: Final = ("catalogue", "takedown")

LASTING: Final = (
    *FIXED,
    *(
        f"pipeline.{name}"
        for name in (
            "columns",
            "missing_ids",
            "item_features",
            "user_features",
            "timestamp_unit",
            "time_zone",
            "min_time",
            "max_time",
            "clock_tolerance_minutes",
            "max_weight",
            "event_types",
            "unknown_event_type",
            "allowed_lateness_seconds",
            "history_length",
            "late_items",
            "seen_items",
            "exposed_items",
            "retention_days",
            "erasure_days",
        )
    ),
    *OUTSIDE_PIPELINE,
)
"""All lasting settings: how to read a row, what windows hold and how long, and the files that servers need."""


class LayoutError(UserError):
    """A setting contradicts the store."""


def values_of(config: PipelineConfig) -> dict[str, JsonValue]:
    """Return the lasting pipeline settings by name, as JSON values; leaves out an unset `window_seconds`."""
    dumped = config.model_dump(mode="json") | {"sketch": config.sketch.parameters()}
    values = {name: dumped[name.removeprefix("pipeline.")] for name in LASTING if name not in OUTSIDE_PIPELINE}
    if config.window_seconds is None:
        del values["pipeline.window_seconds"]
    return values


def recorded(store: Store, *, may_be_lost: bool = False) -> dict[str, JsonValue]:
    """Return the settings recorded in a store, by name; a store of an older version has the `FIXED` ones only.

    Raises `StoreFormatError` and `CorruptArtefactError`.
    """
    form, kept = read_format(store), read_settings(store, may_be_lost=may_be_lost)
    found: dict[str, JsonValue] = {} if kept is None else dict(kept.values)
    if form is not None:
        found["pipeline.secret_keys"] = bool(form.key_secret)
    if form is not None and form.layout is not None:
        found["pipeline.window_seconds"] = form.layout.window_ms // 1000
        found["pipeline.user_shards"] = form.layout.user_shards
        found["pipeline.sketch"] = dict(form.layout.sketch)
    # A later version may have recorded settings that this one does not know.
    return {name: found[name] for name in LASTING if name in found}


def settled(store: Store, config: PipelineConfig) -> PipelineConfig:
    """Fill unset settings of `config` from the store; raises `LayoutError` if a set value differs."""
    known, ours = recorded(store), values_of(config)
    given = {name for name in ours if name.removeprefix("pipeline.") in config.model_fields_set}
    if wrong := contradicting(store, known, ours, given):
        raise LayoutError("; ".join(refusal(store, name, ours[name], known[name]) for name in wrong))
    taken = {
        name.removeprefix("pipeline."): value
        for name, value in known.items()
        if name not in OUTSIDE_PIPELINE and name not in given and ours.get(name) != value
    }
    return PipelineConfig.model_validate(config.model_dump(exclude_unset=True) | taken) if taken else config


def contradicting(
    store: Store, known: Mapping[str, JsonValue], ours: Mapping[str, JsonValue], given: Collection[str]
) -> list[str]:
    """Return the names in `given` whose value in `ours` differs from the `known` one of the store.

    Before the first commit only `FIXED` settings contradict: a pipeline that found no valid row may start again with
    others.
    """
    differing = [name for name, value in known.items() if name in given and name in ours and ours[name] != value]
    return [name for name in differing if name in FIXED or _has_commits(store)]


def _has_commits(store: Store) -> bool:
    return store.exists("commits/HEAD") or store.exists(CommitLog.name(0))


def refusal(store: Store, name: str, value: JsonValue, before: JsonValue, source: str = "") -> str:
    """Return the error message for a setting whose `value` differs from the value `before` in the store.

    `source` names where the value was given.
    """
    where = f" ({source})" if source else ""
    head = f"{name} is {spelled(value)}{where}, but {store.url} was written with {spelled(before)}"
    assigned = quote(f"{name}={spelled(value)}")
    if name in FIXED:
        new = f"weir rebuild --from {quote(store.url)} --to NEW --set {assigned}"
        return f"{head}: use that, or a new store (`{new}`)"
    return f"{head}: leave it out, or change it with `weir settings --store {quote(store.url)} --set {assigned}`"


def spelled(value: JsonValue) -> str:
    """Return a value as ``--set`` accepts it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def remember(store: Store, values: Mapping[str, JsonValue], *, is_new: bool) -> None:
    """Record settings that the store lacks; after the first commit, recorded values stay.

    A missing catalogue or takedown file is not recorded, because servers may name one. Neither is a URL with a password
    or a query, which may be a signature.
    """
    before = read_settings(store)
    kept = {} if before is None else before.values
    stays = kept.keys() if kept and _has_commits(store) else {}
    new = {name: value for name, value in values.items() if name not in FIXED and name not in stays}
    new = {name: value for name, value in new.items() if name not in kept or kept[name] != value}
    new = {name: value for name, value in new.items() if value is not None or name not in OUTSIDE_PIPELINE}
    for name in [name for name, value in new.items() if name in OUTSIDE_PIPELINE and has_secret(value)]:
        logger.warning("%s: its URL may hold a secret, so it is not recorded in %s", name, store.url)
        del new[name]
    if not new:
        return
    changes = () if before is None else before.changes
    if not write_settings(store, StoreSettings(values=kept | new, changes=changes), before):
        remember(store, values, is_new=is_new)
    elif not is_new:
        told = ", ".join(f"{name} = {spelled(value)}" for name, value in new.items())
        logger.warning(
            "%s was written before its settings travelled with it; recorded from now on: %s", store.url, told
        )


def check_unchanged(store: Store, config: PipelineConfig) -> None:
    """Raise `LayoutError` if the recorded settings have changed since a pipeline read them."""
    kept, ours = read_settings(store), values_of(config)
    if kept is None:
        return
    if changed := [name for name, value in kept.values.items() if name in ours and ours[name] != value]:
        raise LayoutError(
            f"{', '.join(changed)}: changed in {store.url} while this pipeline ran; start it again, and it goes on "
            "with the new settings"
        )


def has_secret(value: JsonValue) -> bool:
    """Return whether a URL has a password or a query."""
    if not isinstance(value, str) or "://" not in value:
        return False
    parts = urlsplit(value)
    return ("@" in parts.netloc and ":" in parts.netloc.rpartition("@")[0]) or bool(parts.query)
