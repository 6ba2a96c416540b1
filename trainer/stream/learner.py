"""One window: it tests the model, then its items and frequencies are ingested, then the model trains on it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from contracts import WindowLog, WindowManifest
from trainer.items.table import FIRST_ITEM
from trainer.ranks.workers import Workers
from trainer.state.checkpoint import CheckpointLog
from trainer.state.stretches import continued
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples, Positives, batches, read_positives
from trainer.step.seeds import Purpose, generator
from trainer.step.step import train_step
from trainer.stream.ingest import ingest
from trainer.stream.prequential import evaluate
from trainer.stream.progress import ProgressObserver
from trainer.stream.windows import Stop

__all__ = ["Learner"]

logger = logging.getLogger(__name__)


@dataclass
class Learner:
    """Carries the state through windows, on every rank alike.

    `review` gets each window and its positives on rank 0 before they are trained on, to test anything else on them.
    """

    state: TrainerState
    log: WindowLog
    workers: Workers
    stop: Stop
    observer: ProgressObserver
    checkpoints: CheckpointLog
    review: Callable[[WindowManifest, Positives], None] | None = None

    def __post_init__(self) -> None:
        self.state.stretches = continued(self.state.stretches, self.state.position, self.workers)

    def process_window(self, manifest: WindowManifest) -> bool:
        """Test on a window, ingest it and train on it; return False if a signal came before its end."""
        position = self.state.position
        if position.sequence != manifest.sequence:
            # The window where training was has retired.
            position.sequence, position.batch, position.attempt = manifest.sequence, 0, ""
        if position.attempt not in {"", manifest.attempt}:
            # Their order follows from their number: nobody knows which of them are left.
            logger.warning("users were forgotten in window %s: the rest of it is not trained on", manifest.name)
            self._leave(manifest)
            return True
        position.attempt = manifest.attempt
        config = self.state.config
        found = read_positives(self.log, manifest, config.tower.history_length, config.negatives.exposed)
        if position.batch == 0:
            self._test(manifest, found)
            self._ingest(manifest, found)
        examples = Examples.of(found, self.state.table, self.state.users).admitted()
        del found  # as large as the examples
        if not self._train(manifest, examples):
            return False
        self._leave(manifest)
        return True

    def _leave(self, manifest: WindowManifest) -> None:
        at = self.state.position
        at.sequence, at.batch, at.attempt = manifest.sequence + 1, 0, ""

    def _test(self, manifest: WindowManifest, found: Positives) -> None:
        evaluation = evaluate(self.state, manifest, found, self.workers)
        self.observer.evaluated(evaluation)
        if evaluation.recall:
            self.state.recent.append(evaluation)
        if self.review is not None and self.workers.is_first:
            self.review(manifest, found)

    def _ingest(self, manifest: WindowManifest, found: Positives) -> None:
        changes = ingest(self.state, self.log, manifest, found)
        unadmitted = int((self.state.table.rows(found.items) < FIRST_ITEM).sum())
        exposed = int((self.state.table.rows(found.exposed) >= FIRST_ITEM).sum())
        self.observer.ingested(changes, len(self.state.table), unadmitted, exposed)
        self.observer.frequencies_updated(self.state.frequencies.sketch, len(found.items))

    def _train(self, manifest: WindowManifest, examples: Examples) -> bool:
        state, config, at = self.state, self.state.config, self.state.position
        steps = -(-len(examples) // config.batch_size)
        self.observer.window_started(str(manifest.name), manifest.sequence, steps, at.batch, at.step)
        at.trained_window, at.trained_sequence = str(manifest.name), manifest.sequence
        at.max_event_ms = max(at.max_event_ms, manifest.max_event_ms)
        order = generator(config.seed, Purpose.SHUFFLE, manifest.sequence)
        for batch in batches(examples, config.batch_size, order, at.batch):
            result = train_step(state, batch, self.workers, stop=self.stop.requested)
            self.observer.stepped(result, int(batch.real.sum()), at.batch, at.step)
            if result.stop and at.batch < steps:
                return False
            if at.step % config.checkpoint_every_steps == 0 and at.batch < steps:
                self.checkpoints.save(state, self.workers)
        self.observer.window_trained(manifest.sequence, steps, at.step)
        return True
