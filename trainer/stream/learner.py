"""Work on one window: test the model on it, ingest its items and frequencies, then train the model on it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from weir.contracts import ItemKeys, UserKeys, WindowLog, WindowManifest
from weir.contracts.base.columns import COUNT, ITEM_ID, ITEM_KEY
from weir.trainer.items.table import FIRST_ITEM, RowChanges
from weir.trainer.ranks.coordination import Pace, Stop
from weir.trainer.ranks.device import keep_freed_memory
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.ingestion import ingest_window
from weir.trainer.state.progress import continued
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Batch, ahead, batches
from weir.trainer.step.positives import SharedWindow
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.step import train_step
from weir.trainer.stream.prequential import evaluate
from weir.trainer.stream.progress import ProgressObserver
from weir.trainer.stream.windows import ReadAhead

__all__ = ["Learner", "ingest"]

logger = logging.getLogger(__name__)


_STEPS_BETWEEN_PACES: Final = 100
_STEPS_BETWEEN_CALLS: Final = 10


def ingest(state: TrainerState, log: WindowLog, manifest: WindowManifest, window: SharedWindow) -> RowChanges:
    """Ingest a window with these positives, before any step on it; return the admitted and evicted rows."""
    items = log.items(manifest)
    arrays = items[ITEM_KEY].to_numpy(), items[ITEM_ID].to_numpy(), items[COUNT].to_numpy()
    features = log.item_features(manifest) if manifest.item_features.all else None
    users = _users(state, log, manifest, window)
    return ingest_window(state, manifest, log.sketch(manifest), arrays, users=users, features=features)


def _users(
    state: TrainerState, log: WindowLog, manifest: WindowManifest, window: SharedWindow
) -> tuple[bytes, UserKeys] | None:
    """Return the sketch of users and the users of all positives if the loss needs user counts, else None."""
    if not state.config.loss.needs.user_counts:
        return None
    return log.user_sketch(manifest), UserKeys(window.whole(window.own.users))


@dataclass
class Learner:
    """Trains the state on windows, in the same way on every rank.

    `review` is called with each window before the training on it, to test other models. `between` is called every ten
    steps, on all ranks together.
    """

    state: TrainerState
    log: WindowLog
    workers: Workers
    stop: Stop
    observer: ProgressObserver
    checkpoints: CheckpointLog
    review: Callable[[WindowManifest, SharedWindow], None] | None = None
    between: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        keep_freed_memory()
        self._ahead = ReadAhead(self.log, self.state.config, self.workers)
        self._pace, self._nodes = Pace(self.workers), self.workers.nodes()
        self._warned = False
        if self.workers.is_first:
            logger.info("training with %d ranks, on %s", len(self._nodes), ", ".join(dict.fromkeys(self._nodes)))
        self.state.stretches = continued(self.state.stretches, self.state.position, self.workers)

    def process_window(self, manifest: WindowManifest) -> bool:
        """Test the model on a window, ingest the window and train on it; return False if a stop came before the end."""
        position = self.state.position
        if position.sequence != manifest.sequence:
            # The window at the stored position has been removed by retention.
            position.sequence, position.batch, position.attempt = manifest.sequence, 0, ""
        if position.attempt not in {"", manifest.attempt}:
            # The order of examples depends on their number: after an erasure, the untrained ones are unknown.
            logger.warning("users were forgotten in window %s: the rest of it is not trained on", manifest.name)
            self._leave(manifest)
            return True
        position.attempt = manifest.attempt
        self._compare_lengths(manifest)
        config = self.state.config
        window = self._ahead.read(manifest)
        steps = -(-self._taken_in(manifest, window) // config.batch_size)
        order = generator(config.seed, Purpose.SHUFFLE, manifest.sequence)
        state = self.state
        sharded = batches(
            window,
            state.table,
            config.batch_size,
            order,
            users=state.users,
            featured=state.featured_users,
            start=position.batch,
        )
        del window  # on disk it is larger than the sharded batches: frees space for the next window
        self._ahead.start(manifest.sequence)
        if not self._train(manifest, sharded, steps):
            return False
        self._leave(manifest)
        return True

    def _compare_lengths(self, manifest: WindowManifest) -> None:
        """Warn once if windows have shorter histories than the tower reads."""
        stored, read = manifest.history_length, self.state.config.tower.history_length
        if stored < read and self.workers.is_first and not self._warned:
            self._warned = True
            logger.warning(
                "trainer.tower.history_length is %d, but windows have histories of %d items: the tower learns nothing "
                "of longer ones, and servers give it no more; `weir rebuild` makes windows with another "
                "pipeline.history_length",
                *(read, stored),
            )

    def _leave(self, manifest: WindowManifest) -> None:
        """Move the position to the next window."""
        at = self.state.position
        at.sequence, at.batch, at.attempt = manifest.sequence + 1, 0, ""

    def _test(self, manifest: WindowManifest, window: SharedWindow) -> None:
        """Evaluate the model on a sample of a window, then call `review`."""
        config = self.state.config
        drawn = window.sampled(config.seed, manifest.sequence, config.evaluation_examples)
        evaluation = evaluate(self.state, manifest, drawn)
        self.observer.evaluated(evaluation)
        if evaluation.recall:
            self.state.evaluated(evaluation)
        if self.review is not None:
            self.review(manifest, window)

    def _taken_in(self, manifest: WindowManifest, window: SharedWindow) -> int:
        """Test on a window and ingest it, unless done before a restart; return how many positives have an item row."""
        if self.state.position.batch:
            return self._with_row(window, window.own.items)
        self._test(manifest, window)
        changes = ingest(self.state, self.log, manifest, window)
        admitted, shown = (self._with_row(window, keys) for keys in (window.own.items, window.own.exposed))
        self.observer.ingested(changes, len(self.state.table), len(window) - admitted, shown)
        self.observer.frequencies_updated(self.state.frequencies.sketch, len(window))
        return admitted

    def _with_row(self, window: SharedWindow, keys: ItemKeys) -> int:
        """Return the number of keys whose items have a table row, over all ranks; `keys` (n, ...) are this rank's."""
        rows = (self.state.table.rows(ItemKeys(keys[block])) for block in window.own_blocks())
        own = torch.tensor(sum(int((part >= FIRST_ITEM).sum()) for part in rows))
        return int(self.workers.sum(own))

    def _train(self, manifest: WindowManifest, sharded: Iterator[Batch], steps: int) -> bool:
        """Train on the batches of a window, and save checkpoints; return False if a stop came before the last step."""
        state, config, at = self.state, self.state.config, self.state.position
        self.observer.window_started(str(manifest.name), manifest.sequence, steps, at.batch, at.step)
        at.trained_window, at.trained_sequence = str(manifest.name), manifest.sequence
        at.max_event_ms = max(at.max_event_ms, manifest.max_event_ms)
        state.trained_commit = self.log.last or state.trained_commit
        for batch in ahead(sharded, state.device):
            with self._pace.step():
                result = train_step(state, batch, self.workers, stop=self.stop.is_set())
            self.observer.stepped(result, int(batch.real.sum()), at.batch, at.step)
            if at.batch % _STEPS_BETWEEN_PACES == 0 or at.batch == steps:
                self.observer.ranks_stepped(self._nodes, self._pace.of_ranks())
            if self.between is not None and at.batch % _STEPS_BETWEEN_CALLS == 0:
                self.between()
            if result.stop and at.batch < steps:
                return False
            if at.step % config.checkpoint_every_steps == 0 and at.batch < steps:
                self.checkpoints.save(state, self.workers)
        self.observer.window_trained(manifest.sequence, steps, at.step)
        return True
