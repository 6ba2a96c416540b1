"""Everything a run has learnt and where it stands: what a checkpoint holds."""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from contracts import Keys, WindowManifest
from trainer.config import TrainerConfig
from trainer.items.embeddings import Embeddings
from trainer.items.featured import FeaturedItems
from trainer.items.table import ItemTable, RowChanges, Rows
from trainer.log_q.frequencies import FrequencyView
from trainer.log_q.users import Users
from trainer.losses import ItemCache
from trainer.state.evaluation import Evaluation
from trainer.step.model import Position, Totals
from trainer.step.seeds import Purpose, derive, generator
from trainer.towers import Tower, build_tower

__all__ = ["TrainerState"]


@dataclass
class TrainerState:
    """The model, its optimisers, the item table, the frequencies and the position in the stream."""

    config: TrainerConfig
    tower: Tower
    optimizer: torch.optim.AdamW
    embeddings: Embeddings
    table: ItemTable
    frequencies: FrequencyView
    position: Position = field(default_factory=Position)
    recent: deque[Evaluation] = field(default_factory=deque)
    users: Users | None = None
    cache: ItemCache | None = None
    featured: FeaturedItems | None = None
    counts: npt.NDArray[np.float64] = field(init=False)
    item_counts: Tensor = field(init=False)
    log_q: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.users is None and self.config.loss.asks_for_users:
            self.users = Users(FrequencyView(self.config.half_life_seconds))
        self.recent = deque(self.recent, maxlen=self.config.gate_windows)
        self.refresh_frequencies()

    @classmethod
    def fresh(
        cls, config: TrainerConfig, device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> "TrainerState":
        """Return the state before the first window; the same on every rank."""
        device = device or torch.device("cpu")
        table = ItemTable()
        rows = generator(config.seed, Purpose.ROWS, -1)
        embeddings = Embeddings.fresh(table.capacity, config.tower.dimension, rows, device, dtype)
        return cls(config, *_tower(config, device, dtype), embeddings, table, FrequencyView(config.half_life_seconds))

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.embeddings.weight.device

    @property
    def live(self) -> Tensor:
        """The table rows that items own, (V,)."""
        return torch.from_numpy(self.table.live).to(self.device)

    @property
    def totals(self) -> Totals:
        """The decayed label matrix; its users are known only if the loss asks for them."""
        users = (self.users.total, max(round(self.users.distinct.count()), 1)) if self.users else (0.0, 1)
        return Totals(max(users[0], self.config.batch_size), users[1], len(self.table))

    def select(self, used: Tensor) -> Tensor:
        """Return the distinct rows (n,) among `used` ones of any number."""
        return cast(Tensor, torch.unique(used))

    def compose(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return the vectors (n, d) of items as the towers read them: embeddings, with what features add to them."""
        return vectors if self.featured is None else self.featured.compose(vectors, rows)

    def item_vectors(self, rows: Rows) -> Tensor:
        """Return the vectors (n, d) of the items of `rows` (n,) as the towers read them."""
        index = torch.from_numpy(rows).to(self.device)
        return self.compose(self.embeddings.weight[index], index)

    def absorb(
        self,
        manifest: WindowManifest,
        sketch: bytes,
        items: tuple[npt.NDArray[Any], ...],
        users: tuple[bytes, Keys] | None = None,
        features: pa.Table | None = None,
    ) -> RowChanges:
        """Take a window's items and frequencies in, before any step on it: rows change only here.

        Parameters
        ----------
        manifest
            Of the window.
        sketch
            The window's serialised sketch.
        items
            Keys, ids and counts (each (n,)) of the window's ``items.parquet``.
        users
            The serialised sketch of users and the users' keys; needed where the loss asks for users.
        features
            The newest known features of the same items, where the window has any.
        """
        keys, ids, occurrences = items
        self.frequencies.add(sketch, manifest.max_event_ms)
        if self.users is not None and users is not None:
            self.users.add(*users, manifest.max_event_ms)
        self.table.touch(keys, manifest.max_event_ms)
        evicted = np.empty(0, np.int64)
        if self.config.item_ttl_seconds is not None:
            evicted = self.table.expire(round(self.frequencies.time_ms - 1000 * self.config.item_ttl_seconds))
        # A late pane counts little in the decayed view, yet what it holds has certainly been seen.
        seen = np.maximum(self.frequencies.counts(keys), occurrences) >= self.config.admit_after
        admitted = self.table.admit(keys[seen], ids[seen], manifest.max_event_ms)
        self.embeddings.grow(self.table.capacity)
        self.embeddings.initialise(admitted, generator(self.config.seed, Purpose.ROWS, manifest.sequence))
        self.refresh_frequencies()
        self._renew_cache(admitted, evicted)
        changes = RowChanges(admitted, evicted)
        self._absorb_features(manifest, keys, features, changes)
        return changes

    def _absorb_features(
        self, manifest: WindowManifest, keys: Keys, features: pa.Table | None, changes: RowChanges
    ) -> None:
        """Take features in; their part of the model begins with the first window that has any."""
        if features is not None and self.featured is None and self.config.features.buckets:
            self.featured = FeaturedItems.fresh(self.config.features.buckets, self.embeddings.weight)
            self.optimizer.add_param_group({"params": self.featured.parameters()})
        if self.featured is not None:
            self.featured.absorb(manifest, self.table.rows(keys), features, changes, self.table.capacity)

    def _renew_cache(self, admitted: Rows, evicted: Rows) -> None:
        """Let items enter the cache's choice and leave it; without items there is no cache."""
        if not self.config.loss.cache:
            return
        if not len(self.table):
            self.cache = None
            return
        if self.cache is None:
            draw = generator(self.config.seed, Purpose.CACHE)
            self.cache = ItemCache(self.config.loss.cache, self.table.capacity, draw, ids=self.live.cpu())
            return
        self.cache.add(self.table.capacity - len(self.cache.counts), in_use=False)
        self.cache.restore(torch.from_numpy(admitted))
        # A row that changed hands within the window has a new item, which the cache must not take for the old one.
        self.cache.remove(torch.from_numpy(np.setdiff1d(evicted, admitted)))

    def refresh_frequencies(self) -> None:
        """Recompute counts and log Q of every table row, so that a step only gathers from them."""
        live = self.table.live
        self.counts = np.zeros(self.table.capacity)
        self.counts[live] = self.frequencies.counts(self.table.keys[live])
        # Rows that no item owns are never drawn; any value below 0 will do for them.
        log_q = torch.full((self.table.capacity,), -1.0, dtype=self.embeddings.weight.dtype)
        log_q[live] = torch.from_numpy(self.frequencies.log_q(self.table.keys[live])).to(log_q.dtype)
        self.log_q = log_q.to(self.device)
        self.item_counts = torch.from_numpy(self.counts).to(self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as one flat mapping of tensors."""
        flat = {f"tower.{name}": value.detach() for name, value in self.tower.state_dict().items()}
        for number, slot in self.optimizer.state_dict()["state"].items():
            flat |= {f"optimizer.{number}.{name}": value for name, value in slot.items()}
        flat |= {"embeddings.weight": self.embeddings.weight, "embeddings.squares": self.embeddings.squares}
        flat |= {f"table.{name}": value for name, value in self.table.state().items()}
        flat |= {f"frequencies.{name}": value for name, value in self.frequencies.state().items()}
        if self.users is not None:
            flat |= {f"users.{name}": value for name, value in self.users.state().items()}
        if self.cache is not None:
            flat |= {f"cache.{name}": value for name, value in self.cache.state_dict().items()}
        if self.featured is not None:
            flat |= {f"features.{name}": value for name, value in self.featured.state().items()}
        progress = {
            "position": vars(self.position),
            "time_ms": self.frequencies.time_ms,
            "recent": [evaluation.model_dump(mode="json") for evaluation in self.recent],
        }
        return flat | {"progress": _from_bytes(json.dumps(progress).encode())}

    @classmethod
    def restore(cls, config: TrainerConfig, flat: dict[str, Tensor], device: torch.device) -> "TrainerState":
        """Return the state that `tensors` had described."""
        progress = json.loads(_to_bytes(flat["progress"]))
        weight, squares = flat["embeddings.weight"].to(device), flat["embeddings.squares"].to(device)
        tower, optimizer = _tower(config, device, weight.dtype)
        tower.load_state_dict(_under("tower.", flat))
        featured = None
        if features := _under("features.", flat):
            featured = FeaturedItems.fresh(config.features.buckets, weight)
            featured.load(features)
            optimizer.add_param_group({"params": featured.parameters()})
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("optimizer.", flat).items():
            number, _, slot = name.partition(".")
            slots.setdefault(int(number), {})[slot] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
        return cls(
            config,
            tower,
            optimizer,
            Embeddings(weight, squares),
            ItemTable.restore(_under("table.", flat)),
            FrequencyView.restore(config.half_life_seconds, progress["time_ms"], _under("frequencies.", flat)),
            Position(**progress["position"]),
            deque(Evaluation.model_validate(entry) for entry in progress["recent"]),
            Users.restore(config.half_life_seconds, users) if (users := _under("users.", flat)) else None,
            _restored_cache(config, _under("cache.", flat)),
            featured,
        )


def _tower(config: TrainerConfig, device: torch.device, dtype: torch.dtype) -> tuple[Tower, torch.optim.AdamW]:
    tower = build_tower(config.tower, derive(config.seed, Purpose.TOWER)).to(device, dtype)
    rate, decay = config.optimizer.learning_rate, config.optimizer.weight_decay
    return tower, torch.optim.AdamW(tower.parameters(), lr=rate, weight_decay=decay)


def _restored_cache(config: TrainerConfig, state: dict[str, Tensor]) -> ItemCache | None:
    if not state:
        return None
    cache = ItemCache(config.loss.cache, len(state["counts"]), torch.Generator())
    cache.load_state_dict(state)
    return cache


def _under(prefix: str, flat: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)}


def _from_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
