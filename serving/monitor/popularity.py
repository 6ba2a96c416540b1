"""The baseline: what was popular before the window, from the sketches of the windows before it.

It is kept in the store, so that a restart reads the windows since, not all: a cache, rebuilt from the windows that are
left if it is lost.
"""

import io
import logging
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts import CommitLog, CorruptArtefactError, ItemKeys, Key, Store, WindowLog, WindowManifest, columns
from weir.contracts.commit import CommitRef
from weir.contracts.commits import LogMismatchError
from weir.contracts.documents import seal, unseal
from weir.sketches import FrequencyView

__all__ = ["Popularity"]

log = logging.getLogger(__name__)

_NAME: Final = "state/popularity"


@dataclass
class Popularity:
    """Decayed counts of the items of all windows added so far, and the items' ids by key.

    A window's counts halve with every `half_life_seconds` of event time; one that comes late is added as if it had been
    there all along. `sequence` is the newest pane added, and `commit` its commit.
    """

    half_life_seconds: float
    ids: dict[int, str] = field(default_factory=dict)
    sequence: int = -1
    commit: CommitRef | None = None
    _recent: FrequencyView = field(init=False)

    def __post_init__(self) -> None:
        self._recent = FrequencyView(self.half_life_seconds)

    @classmethod
    def load(cls, store: Store, half_life_seconds: float) -> "Popularity":
        """Return what was saved last with this half-life; nothing counted where there is none, or a damaged one."""
        try:
            table = pq.read_table(pa.BufferReader(unseal(store.path(_NAME), store.read(_NAME))))
            facts = {name.decode(): value for name, value in table.schema.metadata.items()}
            if float(facts["half_life"]) == half_life_seconds:
                ids = zip(table[columns.ITEM_KEY].to_pylist(), table[columns.ITEM_ID].to_pylist(), strict=True)
                commit = CommitRef.model_validate_json(facts["commit"]) if "commit" in facts else None
                found = cls(half_life_seconds, dict(ids), int(facts["sequence"]), commit)
                CommitLog(store).require(store.path(_NAME), found.sequence, commit)
                found._recent.load_state_dict({"sketch": np.frombuffer(facts["sketch"], np.uint8)})
                found._recent.time_ms = int(facts["time_ms"])
                return found
            log.info("the popularity baseline has another half-life now: it is counted again")
        except FileNotFoundError:
            pass
        except (CorruptArtefactError, LogMismatchError, pa.ArrowException, KeyError, ValueError) as error:
            log.warning("%s is not used, popularity is counted again: %s", store.path(_NAME), error)
        return cls(half_life_seconds)

    def save(self, store: Store) -> None:
        """Keep the counts in the store; there must be some."""
        facts = {
            "half_life": repr(self.half_life_seconds),
            "sequence": str(self.sequence),
            "time_ms": str(self._recent.time_ms),
            "sketch": self._recent.state_dict()["sketch"].tobytes(),
        }
        if self.commit is not None:
            facts["commit"] = self.commit.model_dump_json()
        keys, ids = pa.array(self.ids.keys(), pa.int64()), pa.array(self.ids.values(), pa.string())
        table = pa.table({columns.ITEM_KEY: keys, columns.ITEM_ID: ids}).replace_schema_metadata(facts)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        store.write(_NAME, seal(_NAME, buffer.getvalue()))

    def name(self, windows: WindowLog, manifest: WindowManifest) -> None:
        """Remember the ids of a window's items, not their counts."""
        items = windows.items(manifest)
        self.ids.update(zip(items[columns.ITEM_KEY].to_pylist(), items[columns.ITEM_ID].to_pylist(), strict=True))

    def add(self, windows: WindowLog, manifest: WindowManifest) -> None:
        """Count a window; raises `CorruptArtefactError`."""
        self.name(windows, manifest)
        sketch = windows.sketch(manifest)
        try:
            self._recent.add(sketch, manifest.end_ms)
        except ValueError as error:
            log.warning("the windows' sketches changed, popularity starts from zero: %s", error)
            self._recent = FrequencyView(self.half_life_seconds)
            self._recent.add(sketch, manifest.end_ms)
        self.sequence, self.commit = manifest.sequence, windows.last

    def top(self, k: int) -> list[Key]:
        """Return the keys of the `k` most frequent items, most frequent first; none before the first window."""
        if self._recent.sketch is None:
            return []
        keys = ItemKeys(np.fromiter(self.ids, np.int64, len(self.ids)))
        order = np.argsort(-self._recent.counts(keys), kind="stable")
        return [Key(key) for key in keys[order[:k]].tolist()]
