"""Data contracts: what one stage hands to the next.

`interaction` (a line of the log), `window` (a committed slice of event time), `bundle` (a servable model). Windows
exist by the log of `commits`; everything is stored through `storage`, and small files as `documents`.
"""

from weir.contracts.bundle import BundleLog, Pin, Withdrawal
from weir.contracts.bundle_manifest import (
    BUNDLE_ITEMS_SCHEMA,
    BundleFile,
    BundleManifest,
    IndexFit,
    IndexInfo,
    IndexRows,
)
from weir.contracts.clock import EventClock
from weir.contracts.commit import Commit
from weir.contracts.commits import CommitLog, CommitTakenError
from weir.contracts.documents import Document
from weir.contracts.errors import CorruptArtefactError, UserError
from weir.contracts.features import FeatureNames
from weir.contracts.fitness import check_fitness
from weir.contracts.format import Layout, StoreFormat, StoreFormatError, ensure_format, read_format, software_version
from weir.contracts.history_files import HistoryFile, HistoryFiles
from weir.contracts.horizon import Horizon, RetiredError, Retirement
from weir.contracts.interaction import INTERACTION_SCHEMA, MAX_ID_BYTES, Label, interaction_schema
from weir.contracts.keys import (
    PADDING_KEY,
    ItemKeys,
    Key,
    Keys,
    RawId,
    UserKeys,
    hash_id,
    hash_ids,
    hash_strings,
    shards_of,
)
from weir.contracts.local_cache import LocalCache
from weir.contracts.log_state import LogState
from weir.contracts.redaction import LetterFile
from weir.contracts.source_span import Inherited, SourceSpan
from weir.contracts.storage import FileEntry, Store, UnfitStoreError, checksum
from weir.contracts.user_file import UserFile, write_user_file
from weir.contracts.user_histories import UserHistories, open_shard
from weir.contracts.user_lookup import UserTable
from weir.contracts.user_rows import FoundUsers, Records, SeenItems, UserRows
from weir.contracts.window import (
    ITEMS_SCHEMA,
    ExposureCounts,
    WindowCounts,
    WindowManifest,
    WindowName,
    examples_schema,
    items_schema,
)
from weir.contracts.window_log import WindowLog

__all__ = [
    "BUNDLE_ITEMS_SCHEMA",
    "INTERACTION_SCHEMA",
    "ITEMS_SCHEMA",
    "MAX_ID_BYTES",
    "PADDING_KEY",
    "BundleFile",
    "BundleLog",
    "BundleManifest",
    "Commit",
    "CommitLog",
    "CommitTakenError",
    "CorruptArtefactError",
    "Document",
    "EventClock",
    "ExposureCounts",
    "FeatureNames",
    "FileEntry",
    "FoundUsers",
    "HistoryFile",
    "HistoryFiles",
    "Horizon",
    "IndexFit",
    "IndexInfo",
    "IndexRows",
    "Inherited",
    "ItemKeys",
    "Key",
    "Keys",
    "Label",
    "Layout",
    "LetterFile",
    "LocalCache",
    "LogState",
    "Pin",
    "RawId",
    "Records",
    "RetiredError",
    "Retirement",
    "SeenItems",
    "SourceSpan",
    "Store",
    "StoreFormat",
    "StoreFormatError",
    "UnfitStoreError",
    "UserError",
    "UserFile",
    "UserHistories",
    "UserKeys",
    "UserRows",
    "UserTable",
    "WindowCounts",
    "WindowLog",
    "WindowManifest",
    "WindowName",
    "Withdrawal",
    "check_fitness",
    "checksum",
    "ensure_format",
    "examples_schema",
    "hash_id",
    "hash_ids",
    "hash_strings",
    "interaction_schema",
    "items_schema",
    "open_shard",
    "read_format",
    "shards_of",
    "software_version",
    "write_user_file",
]
