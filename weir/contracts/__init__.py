"""Data contracts between the stages: interactions, windows, commits, histories, bundles and served lists.

Rooms from top to bottom, each importing only lower ones: `verification`, `consistency` and `histories`, `commits`,
`interactions`, `bundles` and `served_lists`, `storage`, `base`. Every stage may import this package.
"""

from weir.contracts.base.errors import CorruptArtefactError, UserError
from weir.contracts.base.keys import (
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
from weir.contracts.bundles.bundle_log import BundleLog, Pin, Withdrawal
from weir.contracts.bundles.manifest import (
    BUNDLE_ITEMS_SCHEMA,
    BundleFile,
    BundleManifest,
    IndexFit,
    IndexInfo,
    IndexRows,
)
from weir.contracts.commits.commit import Commit, HistoryFile, HistoryFiles, Inherited, LetterFile, SourceSpan
from weir.contracts.commits.commit_log import CommitLog, CommitTakenError
from weir.contracts.commits.event_clock import EventClock
from weir.contracts.commits.log_state import LogState
from weir.contracts.commits.retention_horizon import Horizon, RetiredError, Retirement
from weir.contracts.commits.window import (
    ITEMS_SCHEMA,
    ExposureCounts,
    WindowCounts,
    WindowManifest,
    WindowName,
    examples_schema,
    items_schema,
)
from weir.contracts.commits.window_log import WindowLog
from weir.contracts.histories.lookup import UserHistories, UserTable, open_shard
from weir.contracts.histories.user_file import UserFile, write_user_file
from weir.contracts.histories.user_rows import FoundUsers, Records, SeenItems, UserRows
from weir.contracts.interactions.features import FeatureNames
from weir.contracts.interactions.interaction import INTERACTION_SCHEMA, MAX_ID_BYTES, Label, interaction_schema
from weir.contracts.storage.documents import Document
from weir.contracts.storage.format import (
    Layout,
    StoreFormat,
    StoreFormatError,
    check_fitness,
    ensure_format,
    read_format,
    software_version,
)
from weir.contracts.storage.remote_files import LocalCache
from weir.contracts.storage.store import FileEntry, Store, UnfitStoreError, checksum

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
