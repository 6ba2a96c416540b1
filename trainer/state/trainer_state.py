"""The trainer state: model, item table, frequencies and position in the stream, as a checkpoint stores them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from weir.contracts.base.models import CommitRef
from weir.contracts.base.statistics import of_newest_windows
from weir.contracts.bundles.manifest import Stretch
from weir.contracts.commits.retention_horizon import GATE_WINDOWS
from weir.sketches import FrequencyView
from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.items.placement import LiveRows
from weir.trainer.items.rows import Reader, TableRows, no_rows
from weir.trainer.items.stored import SharedLines
from weir.trainer.items.table import QUESTIONS, ItemTable
from weir.trainer.log_q import row_counts
from weir.trainer.log_q.row_counts import FetchedCounts, LogQ, RowCounts, Users
from weir.trainer.losses import ItemCache
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.assigner import Assigner
from weir.trainer.state.checkpoint_chain import Layout, SavedChain, lines_of_some
from weir.trainer.state.dirty_rows import TouchedOfAll
from weir.trainer.state.items import ItemVectors, ItemWriter
from weir.trainer.state.progress import Evaluation, Progress
from weir.trainer.state.published import SinceBundle
from weir.trainer.state.tensor_files import ROWS, Delta, Stateful, StatefulRows, flatten, group
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.model import Fetched, Position, SecondPhase, Totals
from weir.trainer.step.seeds import Purpose, derive, generator
from weir.trainer.towers import Tower, build_tower
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.towers.user_features import FeaturedUsers

__all__ = ["SINCE", "TrainerState", "start_features", "start_saved", "start_user_features"]


SINCE: Final = "since"
"""Part of a checkpoint with the changes since the newest bundle; training does not depend on it."""

_SHARED: Final = ("embeddings", "table", "counts", "features")
"""Parts that are sharded over ranks."""


def start_features(state: "TrainerState") -> FeaturedItems:
    """Add an untrained part that reads item features to a state, and return it."""
    state.featured = FeaturedItems.fresh(state.config.features.buckets, state.embeddings)
    state.optimizer.extend(state.featured.parameters())
    return state.featured


def start_user_features(state: "TrainerState") -> FeaturedUsers:
    """Add an untrained part that reads user features to a state, and return it."""
    place = len(state.optimizer.parameters)
    state.featured_users = FeaturedUsers.fresh(state.config.features.buckets, state.embeddings.weight, place)
    state.optimizer.extend(state.featured_users.parameters())
    return state.featured_users


def start_saved(state: "TrainerState", saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Add the optional parts that a checkpoint has, in the order in which AdamW numbered their parameters."""
    users = saved.get("user_features")
    users_first = users is not None and FeaturedUsers.place_in(users) == len(state.optimizer.parameters)
    if users_first:
        start_user_features(state)
    if "features" in saved:
        start_features(state)
    if users is not None and not users_first:
        start_user_features(state)


@dataclass
class TrainerState:
    """The model, its optimisers, the item table, the frequencies and the position in the stream.

    `recent` are the newest evaluations, `stretches` the training segments, `saved` the chain of the newest checkpoint,
    `touched` the changed rows for each reader, and `since` the changes since the newest bundle. `trained_commit` is the
    commit of the newest window trained on, known to rank 0.
    """

    config: TrainerConfig
    tower: Tower
    optimizer: AdamW
    embeddings: Embeddings
    table: ItemTable
    frequencies: FrequencyView
    position: Position = field(default_factory=Position)
    recent: list[Evaluation] = field(default_factory=list)
    stretches: tuple[Stretch, ...] = ()
    users: Users | None = None
    cache: ItemCache | None = None
    featured: FeaturedItems | None = None
    second: SecondPhase | None = None
    featured_users: FeaturedUsers | None = None
    saved: SavedChain | None = None
    trained_commit: CommitRef | None = None
    counts: RowCounts = field(init=False)
    touched: TouchedOfAll = field(init=False)
    since: SinceBundle = field(init=False)

    def __post_init__(self) -> None:
        if self.users is None and self.config.loss.needs.user_counts:
            self.users = Users(FrequencyView(self.config.half_life_seconds))
        self.counts = RowCounts(self.frequencies, self.table, self.embeddings.weight, self.embeddings.workers)
        self.touched = TouchedOfAll(self.table, self.embeddings)
        self.since = SinceBundle(self.touched, self.config)

    @classmethod
    def fresh(
        cls,
        config: TrainerConfig,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        workers: Workers | None = None,
    ) -> "TrainerState":
        """Return the state before the first window; the same on every rank, except for its shard of the rows."""
        device = device or torch.device("cpu")
        table = ItemTable(workers=workers)
        rows = generator(config.seed, Purpose.ROWS, -1)
        size, scale = (table.capacity, config.tower.dimension), config.optimizer.embedding_scale
        embeddings = Embeddings.fresh(*size, rows, device, dtype, scale=scale, workers=workers)
        second, counts = SecondPhase.fresh(config, device, dtype), FrequencyView(config.half_life_seconds)
        return cls(config, *_tower(config, device, dtype), embeddings, table, counts, second=second)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.embeddings.weight.device

    @property
    def live(self) -> Tensor:
        """Table rows in use, ascending, (V,); costs O(rows)."""
        return torch.from_numpy(self.table.live).to(self.device)

    @property
    def in_use(self) -> LiveRows:
        """Table rows in use, as an object that computes the requested ones only."""
        return self.table.in_use

    @property
    def log_q(self) -> LogQ:
        """Log-probability of each item among the interactions of the stream, by table row (`RowCounts`)."""
        return LogQ(self.counts, self.counts.log_q)

    @property
    def totals(self) -> Totals:
        """Size of the decayed label matrix; the number of users is 1 unless the loss needs user counts."""
        users = (self.users.total, max(round(self.users.distinct.count()), 1)) if self.users else (0.0, 1)
        return Totals(max(users[0], self.config.batch_size), users[1], len(self.table))

    def select(self, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct rows (n,) of `used` (m,), sorted by `Places.key`, and the index (m,) of each used row."""
        return self.embeddings.places.distinct(used)

    def fetch(self, route: Route, rows: Tensor) -> Fetched:
        """Return the data of distinct rows (n,), as from `select`, over their `route`; collective."""
        places, asked = self.embeddings.places, route.asked
        features = () if self.featured is None else self.featured.table.read(asked)
        embeddings = self.embeddings.weight.index_select(0, asked)
        if places.ranks == 1:
            return Fetched(embeddings, self.counts, self.log_q, self._inputs(*features))
        embeddings, values, *fetched = route.answered(embeddings, self.counts.at(asked), *features)
        counts = FetchedCounts(places, places.key(rows), values)
        return Fetched(embeddings, counts, LogQ(counts, self.counts.log_q), self._inputs(*fetched))

    def _inputs(self, *features: Tensor) -> FeatureInputs | None:
        """Return the inputs of the feature part, if the model has one."""
        return None if self.featured is None else self.featured.inputs(*features)

    @property
    def vectors(self) -> ItemVectors:
        """Reader of item vectors, for towers and index."""
        return ItemVectors(self.embeddings, self.featured, self.config.tower)

    def compose(self, vectors: Tensor, features: FeatureInputs | None) -> Tensor:
        """Return item vectors (n, d) from embeddings (n, d) and features of n items; differentiable."""
        return self.vectors.compose(vectors, features)

    def item_vectors(self, rows: TableRows | Tensor) -> Tensor:
        """Return the item vectors (n, d) of distinct rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        return self.vectors.fetch(torch.as_tensor(rows, device=self.device))

    @property
    def writer(self) -> ItemWriter:
        """Writer of all item vectors for a bundle."""
        return ItemWriter(self.in_use, self.vectors)

    @property
    def assigner(self) -> Assigner:
        """Assigner of items to the lists of an index, by their vectors."""
        return Assigner(self.embeddings.workers, self.vectors.searched)

    def answer(self, question: str) -> None:
        """Join the collective on sharded data that rank 0 asks for in `Workers.first`."""
        answers = [self.touched.answer, self.vectors.answer, self.writer.answer, self.assigner.answer]
        answers += [] if self.featured is None else [self.featured.answer]
        if self.since.answer(question, self.vectors.kept) or any(answer(question) for answer in answers):
            return
        if question in QUESTIONS:
            self.table.answer(question)
        elif question in row_counts.QUESTIONS:
            self.counts.answer(question)
        else:
            self.embeddings.answer(question)

    def tensors(self, besides: Collection[str] = ()) -> dict[str, Tensor]:
        """Return the state as tensors by flat name, without the parts `besides`; of sharded parts, this rank's rows.

        If the table is included, the call is collective, or by rank 0 in `Workers.first`.
        """
        parts = {name: part for name, part in self._parts().items() if name not in besides}
        return flatten(parts) | {"progress": self._progress()}

    def tensors_of(self, rows: TableRows) -> dict[str, Tensor | SharedLines]:
        """Return the state at some `rows` (n,) as tensors by flat name, first the rows themselves.

        Sharded arrays are fetched while they are iterated.
        """
        tensors: dict[str, Tensor | SharedLines] = {ROWS: torch.from_numpy(rows)}
        for name, part in self._parts().items():
            tensors |= flatten({name: part}, no_rows() if name in _SHARED else rows)
        shared = lines_of_some(rows, self.embeddings, self.table, self.counts, self.featured)
        return tensors | shared | {"progress": self._progress()}

    def evaluated(self, evaluation: Evaluation) -> None:
        """Add the evaluation of a pane to `recent`, and drop evaluations before the newest `gate_windows` windows."""
        panes = ((pane.window, pane) for pane in (*self.recent, evaluation))
        self.recent = of_newest_windows(panes, self.config.gate_windows)[-GATE_WINDOWS:]

    def layout(self) -> Layout:
        """Return the layout, which two states must have in common to exchange rows."""
        parts = self._parts()
        with_rows = {name: part for name, part in parts.items() if isinstance(part, StatefulRows)}
        lines = {name: (line.dtype, tuple(line.shape)) for name, line in flatten(with_rows, no_rows()).items()}
        return Layout(self.table.capacity, lines, tuple(parts))

    def _progress(self) -> Tensor:
        """Return the encoded progress."""
        return Progress(self.position, self.frequencies.time_ms, tuple(self.recent), self.stretches).encoded()

    @classmethod
    def restore(
        cls,
        config: TrainerConfig,
        flat: dict[str, Tensor],
        device: torch.device,
        deltas: Iterable[Delta] = (),
        workers: Workers | None = None,
    ) -> "TrainerState":
        """Return the state from the result of `tensors`, with the deltas of `tensors_of` applied in order.

        `flat` and each delta are emptied, to free tensors as soon as a part has loaded them.
        """
        saved = group(flat)
        flat.clear()
        progress, since = saved.pop("progress")[""], saved.pop(SINCE, {})
        state = cls.fresh(config, device, saved["embeddings"]["weight"].dtype, workers)
        state.table.load_state_dict(saved.pop("table"))
        # Embeddings and item features take the capacity from the table.
        state.embeddings.places = replace(state.embeddings.places, capacity=state.table.capacity)
        state.embeddings.load_state_dict(saved.pop("embeddings"))
        start_saved(state, saved)
        if "cache" in saved:
            state.cache = ItemCache(config.loss.cache, 1, torch.Generator())
        parts = state._parts()
        for name in list(saved):
            parts[name].load_state_dict(saved.pop(name))
        state._load_progress(progress, since)
        for delta in deltas:
            state._load_rows(delta)
        state.table.index()
        state.touched.clear(Reader.CHECKPOINT)
        state.counts.recount()
        return state

    def _load_rows(self, delta: Delta) -> None:
        """Load a delta, the result of `tensors_of`, and empty it."""
        saved, parts = group(delta.tensors), self._parts()
        delta.tensors.clear()
        self._load_progress(saved.pop("progress")[""], saved.pop(SINCE, {}))
        for name in list(saved):
            part = parts[name]
            if isinstance(part, StatefulRows):
                part.load_rows(delta.rows(name), saved.pop(name))
            else:
                part.load_state_dict(saved.pop(name))

    def _load_progress(self, stored: Tensor, since: dict[str, Tensor]) -> None:
        """Load the encoded progress, and the changes since the newest bundle."""
        self.since.load_state_dict(since)
        self.position, self.frequencies.time_ms, recent, self.stretches = Progress.decoded(stored)
        self.recent = list(recent)

    def _parts(self) -> dict[str, Stateful]:
        """Return all parts of the state, in the order of the checkpoint's files."""
        parts: dict[str, Stateful | None] = {
            "tower": self.tower,
            "optimizer": self.optimizer,
            "embeddings": self.embeddings,
            "table": self.table,
            "frequencies": self.frequencies,
            "counts": self.counts,
            "users": self.users,
            "cache": self.cache,
            "features": self.featured,
            "user_features": self.featured_users,
            "rescoring": None if self.second is None else self.second.scorer,
            "rescoring_optimizer": None if self.second is None else self.second.optimizer,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _tower(config: TrainerConfig, device: torch.device, dtype: torch.dtype) -> tuple[Tower, AdamW]:
    """Return an untrained user tower and its optimiser."""
    tower = build_tower(config.tower, derive(config.seed, Purpose.TOWER)).to(device, dtype)
    rate, decay = config.optimizer.learning_rate, config.optimizer.weight_decay
    return tower, AdamW(tower.parameters(), rate, decay)
