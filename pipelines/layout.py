"""What a store was written with, against the settings. It loads no Beam: `weir up` looks before it starts anything."""

import secrets
from collections.abc import Iterable, Iterator, Mapping

from weir.contracts import Layout, SourceSpan, Store, StoreFormat, ensure_format
from weir.pipelines.config import PipelineConfig
from weir.readers import KnownFile, Partition, identified

__all__ = ["LayoutError", "identify_files", "open_layout"]


class LayoutError(ValueError):
    """A setting contradicts what the store already holds."""


def open_layout(store: Store, config: PipelineConfig) -> StoreFormat:
    """Give a new store its layout, and refuse settings that contradict that of an old one.

    Raises
    ------
    LayoutError
        Under such settings committed rows would be counted again, or sketches could not be merged.
    StoreFormatError
        If the store has a format that this version cannot read.
    """
    wanted = Layout(window_ms=config.window_ms, user_shards=config.user_shards, sketch=config.sketch.parameters())
    secret = secrets.token_hex(16) if config.secret_keys else ""
    found = ensure_format(store, StoreFormat(layout=wanted, key_secret=secret))
    for setting, old, new in _differences(found, wanted, is_secret=config.secret_keys):
        raise LayoutError(
            f"{setting} is {new}, but {store.url} was written with {old}: use that, or a new store (`weir rebuild`)"
        )
    return found


def _differences(found: StoreFormat, new: Layout, *, is_secret: bool) -> Iterator[tuple[str, object, object]]:
    if bool(found.key_secret) != is_secret:
        yield "secret_keys", bool(found.key_secret), is_secret
    old = found.layout or new
    if old.window_ms != new.window_ms:
        yield "window_seconds", old.window_ms / 1000, new.window_ms / 1000
    if old.user_shards != new.user_shards:
        yield "user_shards", old.user_shards, new.user_shards
    if old.sketch != new.sketch:
        yield "sketch", old.sketch, new.sketch


def identify_files(partitions: Iterable[Partition], spans: Mapping[str, SourceSpan]) -> list[Partition]:
    """Return listed files as the partitions that they are: with the keys of their generations (`generations`).

    `spans` is what is known of partitions, by key. Left out are files that the file system cannot give now.
    """
    known = {key: KnownFile(span.size, span.fingerprint, span.modified_ms) for key, span in spans.items()}
    found = [identified(partition, known) for partition in partitions]
    return [partition for partition in found if partition is not None]
