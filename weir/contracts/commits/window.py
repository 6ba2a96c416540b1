"""The window (contract 3): one committed slice of event time, with its training examples, items and sketches.

The files of a pane lie in ``windows/<start>-<end>/<attempt>/``; late rows add further panes to a window. A pane exists
if a commit (`weir.contracts.commits.commit`) holds its manifest; files that no commit names are left over from a killed
run. Panes are numbered in commit order (`WindowManifest.sequence`), which every consumer follows.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from weir.contracts.base import columns
from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.interactions.features import NO_FEATURES, FeatureNames, StoredFeatureNames, UserFeatures
from weir.contracts.storage.documents import Document
from weir.contracts.storage.store import FileEntry

__all__ = [
    "ITEMS_SCHEMA",
    "ExposureCounts",
    "WindowCounts",
    "WindowManifest",
    "WindowName",
    "examples_schema",
    "items_schema",
]

_EXAMPLES: Final = "examples-"
_ITEMS: Final = "items.parquet"
_SKETCH: Final = "sketch.bin"
_USER_SKETCH: Final = "user-sketch.bin"

ITEMS_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.COUNT, pa.int64(), nullable=False),
    ]
)
"""The distinct items of a window's positive events, in order of key, with their counts."""


def items_schema(features: FeatureNames) -> pa.Schema:
    """Return the schema of ``items.parquet``: `ITEMS_SCHEMA`, then the newest known values of each feature."""
    return pa.schema([*ITEMS_SCHEMA, *features.fields])


def examples_schema(
    history_length: int, exposed_items: int = 0, user_features: FeatureNames = NO_FEATURES
) -> pa.Schema:
    """Return the schema of ``examples-*.parquet``.

    `history` holds the keys of the user's last positives before the event, oldest first, padded on the left with
    `PADDING_KEY`; `label` is +1 or -1 (`Label`); `event_key` is the hashed `event_id`, null without one. With
    `exposed_items`, `exposed` holds the keys of at most that many items that were shown beside a positive's item and
    not chosen, in order of preference, padded on the right. With `user_features`, the struct of this name holds the
    user features of the event.
    """
    exposed = pa.field(columns.EXPOSED, pa.list_(pa.int64(), exposed_items), nullable=False)
    features = pa.field(columns.USER_FEATURES, pa.struct(user_features.fields), nullable=False)
    return pa.schema(
        [
            pa.field(columns.USER_KEY, pa.int64(), nullable=False),
            pa.field(columns.ITEM_KEY, pa.int64(), nullable=False),
            pa.field(columns.TIMESTAMP, pa.int64(), nullable=False),
            pa.field(columns.HISTORY, pa.list_(pa.int64(), history_length), nullable=False),
            pa.field(columns.WEIGHT, pa.float32(), nullable=False),
            pa.field(columns.LABEL, pa.int8(), nullable=False),
            pa.field(columns.EVENT_KEY, pa.int64()),
            pa.field(columns.ATTRIBUTION_TOKEN, pa.string()),
            *([exposed] if exposed_items else []),
            *([features] if user_features.all else []),
        ]
    )


class WindowCounts(Document):
    """Counts of a window: `events` = `positives` + `negatives` are the distinct valid events kept.

    `unknown_histories` counts `late` events with an empty history, because their history is no longer known.
    """

    events: int = 0
    positives: int = 0
    negatives: int = 0
    ignored: int = 0
    duplicates: int = 0
    late: int = 0
    unknown_histories: int = 0

    def __add__(self, other: "WindowCounts") -> "WindowCounts":
        mine, theirs = self.model_dump(), other.model_dump()
        return WindowCounts(**{name: mine[name] + theirs[name] for name in mine})


class ExposureCounts(Document):
    """Outcomes for the positives with an attribution token when a window was joined with the served lists.

    ``joined``: the list is known and holds the item; ``repeated``: it does, but an earlier event of the pane joined the
    same item of the list; ``not_kept``: the answer was not sampled for recording; ``unknown_list``: the list is gone,
    or not written yet; ``other_item``: the list lacks the item, or is another user's; ``unreadable``: its file is
    damaged; ``carried``: joined before, in the windows from which this one is rebuilt. `items` counts the exposed items
    of all examples.
    """

    joined: int = 0
    repeated: int = 0
    not_kept: int = 0
    unknown_list: int = 0
    other_item: int = 0
    unreadable: int = 0
    carried: int = 0
    items: int = 0

    @property
    def clicks(self) -> dict[str, int]:
        """The number of positives by outcome."""
        found: dict[str, int] = self.model_dump(exclude={"items"})
        return found

    def __add__(self, other: "ExposureCounts") -> "ExposureCounts":
        mine, theirs = self.model_dump(), other.model_dump()
        return ExposureCounts(**{name: mine[name] + theirs[name] for name in mine})


class WindowManifest(Document):
    """One pane of a window, as its commit lists it; times are milliseconds of event time unless said otherwise."""

    sequence: int = Field(ge=0, description="commit order of panes, without gaps")
    start_ms: int
    end_ms: int
    pane: int = Field(ge=0)
    previous: int = Field(default=-1, ge=-1, description="number of the commit with the window's pane before this one")
    attempt: str = Field(pattern=r"^[0-9A-Za-z]+$", description="folder of the pane's files within the window's")
    min_event_ms: int
    max_event_ms: int
    committed_at: float = Field(description="wall clock, seconds since 1970")
    counts: WindowCounts
    history_length: int = Field(ge=1)
    sketch: dict[str, str | int | float | bool] = Field(description="kind and parameters of the estimators")
    item_features: StoredFeatureNames = Field(default=FeatureNames(), description="features in items.parquet")
    exposed_items: int = Field(default=0, ge=0, description="exposed items of an example; 0: the column is absent")
    exposure: ExposureCounts = ExposureCounts()
    user_features: UserFeatures = Field(default=UserFeatures(), description="in the examples, if there are any")
    files: tuple[FileEntry, ...]

    @model_serializer(mode="wrap")
    def _leave_out_what_is_absent(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialise(self)
        if not self.item_features.all:
            fields.pop("item_features", None)
        if not self.exposed_items:
            fields.pop("exposed_items", None)
            fields.pop("exposure", None)
        if not self.user_features.names.all:
            fields.pop("user_features", None)
        return fields

    @property
    def name(self) -> "WindowName":
        """The window and pane."""
        return WindowName(self.start_ms, self.end_ms, self.pane)

    @property
    def folder(self) -> str:
        """The folder of the files, relative to the store."""
        return self.name.folder(self.attempt)

    def file(self, name: str) -> FileEntry:
        """Return a file's entry; raises `CorruptArtefactError` if the manifest does not list it."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise CorruptArtefactError(self.folder, f"its commit does not list {name}")

    @property
    def examples(self) -> dict[int, FileEntry]:
        """The files of examples by user shard, in order of shard."""
        found = (entry for entry in self.files if entry.name.startswith(_EXAMPLES))
        return dict(sorted((int(entry.name.removeprefix(_EXAMPLES)[:5]), entry) for entry in found))


@dataclass(frozen=True, order=True)
class WindowName:
    """A slice [start, end) of event time in milliseconds, and the number of the pane."""

    start_ms: int
    end_ms: int
    pane: int = 0

    def __str__(self) -> str:
        return f"{self.slice}/{self.pane:04d}"

    def folder(self, attempt: str) -> str:
        """Return the folder of an attempt at this window, relative to the store."""
        return f"windows/{self.slice}/{attempt}"

    @property
    def slice(self) -> str:
        """The slice of event time as text."""
        return f"{_stamp(self.start_ms)}-{_stamp(self.end_ms)}"

    @staticmethod
    def examples(shard: int, token: str = "") -> str:
        """Return the file name of a user shard's examples; `token` distinguishes repeated attempts."""
        return f"{_EXAMPLES}{shard:05d}{token and '-' + token}.parquet"

    @staticmethod
    def items() -> str:
        """Return the file name of a pane's item list."""
        return _ITEMS

    @staticmethod
    def sketch() -> str:
        """Return the file name of a pane's sketch of items."""
        return _SKETCH

    @staticmethod
    def user_sketch() -> str:
        """Return the file name of a pane's sketch of users."""
        return _USER_SKETCH


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
