"""Data contracts: what one stage hands to the next.

`interaction` (a line of the log), `window` (a committed slice of event time), `bundle` (a servable model);
the catalogue of items will stand beside them. Everything is stored through `storage`.
"""

from contracts.bundle import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleLog, BundleManifest, IndexInfo
from contracts.clock import EventClock
from contracts.errors import CorruptArtefactError
from contracts.features import FeatureNames
from contracts.histories import Events, Histories
from contracts.interaction import INTERACTION_SCHEMA, MAX_ID_BYTES, Label, interaction_schema
from contracts.keys import PADDING_KEY, Key, Keys, RawId, hash_id, hash_ids
from contracts.storage import FileEntry, Store, checksum
from contracts.window import (
    ITEMS_SCHEMA,
    SourceSpan,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    examples_schema,
    items_schema,
)

__all__ = [
    "BUNDLE_ITEMS_SCHEMA",
    "INTERACTION_SCHEMA",
    "ITEMS_SCHEMA",
    "MAX_ID_BYTES",
    "PADDING_KEY",
    "BundleFile",
    "BundleLog",
    "BundleManifest",
    "CorruptArtefactError",
    "EventClock",
    "Events",
    "FeatureNames",
    "FileEntry",
    "Histories",
    "IndexInfo",
    "Key",
    "Keys",
    "Label",
    "RawId",
    "SourceSpan",
    "Store",
    "WindowCounts",
    "WindowLog",
    "WindowManifest",
    "WindowName",
    "checksum",
    "examples_schema",
    "hash_id",
    "hash_ids",
    "interaction_schema",
    "items_schema",
]
