"""Open the layout of a store: record it in a new store, compare it with the settings else. Loads no Beam."""

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import JsonValue

from weir.contracts import Layout, SourceSpan, Store, StoreFormat, ensure_format, read_format
from weir.pipelines.config import LIVE_WINDOW_SECONDS, PipelineConfig
from weir.pipelines.store_settings import LayoutError, remember, settled, values_of
from weir.readers import KnownFile, Partition, discover, first_look, identified, is_topic

__all__ = ["LayoutError", "identify_files", "open_layout", "with_window"]

_YOUNG_MS: Final = 86_400_000
"""A followed log that begins longer ago than this gets day windows: short ones would make too many panes."""


def with_window(store: Store, config: PipelineConfig, *, follow: bool) -> PipelineConfig:
    """Return the settings with a window length: their own, else the store's, else the default for the log."""
    if config.window_seconds is not None:
        return config
    form = read_format(store)
    if form is not None and form.layout is not None:
        seconds = form.layout.window_ms // 1000
    else:
        seconds = LIVE_WINDOW_SECONDS if _is_live(config, follow=follow) else config.window_ms // 1000
    # Validate again: the retention must cover a window.
    return PipelineConfig.model_validate(config.model_dump(exclude_unset=True) | {"window_seconds": seconds})


def _is_live(config: PipelineConfig, *, follow: bool) -> bool:
    """Return whether the log is a topic, or is followed and starts less than a day ago."""
    if is_topic(config.log):
        return True
    if not follow:
        return False
    try:
        start_ms = first_look(discover(config.log), config).start_ms
    except FileNotFoundError:
        return True
    return start_ms is None or 1000 * time.time() - start_ms < _YOUNG_MS


def open_layout(
    store: Store,
    config: PipelineConfig,
    named: Mapping[str, JsonValue] | None = None,
    *,
    key_secret: str | None = None,
) -> StoreFormat:
    """Record layout and settings in a new store, or refuse settings that contradict the store; return its format.

    `named` are lasting settings of other stages, by name. A new store uses `key_secret`, if given, instead of
    generating one for `secret_keys`.

    Raises
    ------
    LayoutError
        If rows would count again, sketches could not be merged, or stages would disagree under these settings.
    StoreFormatError
        If this version cannot read the format of the store.
    """
    is_new = read_format(store) is None
    layout = Layout(window_ms=config.window_ms, user_shards=config.user_shards, sketch=config.sketch.parameters())
    secret = key_secret if key_secret is not None else secrets.token_hex(16) if config.secret_keys else ""
    form = ensure_format(store, StoreFormat(layout=layout, has_settings=True, key_secret=secret))
    remember(store, values_of(settled(store, config)) | dict(named or {}), is_new=is_new)
    # Another process may have recorded other settings first.
    settled(store, config)
    return form


def identify_files(partitions: Iterable[Partition], spans: Mapping[str, SourceSpan]) -> list[Partition]:
    """Return the listed files as partitions, with the generation in their keys.

    `spans` are the known spans by partition key. Files that cannot be opened now are left out.
    """
    known = {key: KnownFile(span.size, span.fingerprint, span.modified_ms) for key, span in spans.items()}
    files = [identified(partition, known) for partition in partitions]
    return [file for file in files if file is not None]
