"""Training from committed windows to servable bundles.

Continues from the newest checkpoint, in commit order: test, train, export, save. Every rank of torchrun runs `train`.
"""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from weir.contracts import CommitLog, Store, WindowLog
from weir.contracts.bundles.variants import MAIN, line_of
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import ended_by_signals
from weir.trainer.export.background import none_left
from weir.trainer.export.exporter import Exporter
from weir.trainer.ranks.coordination import is_left_to_others, require_asked
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver, TrainProgress, TrainSummary
from weir.trainer.stream.windows import windows

__all__ = ["train"]

logger = logging.getLogger(__name__)


def train(
    store: Store,
    config: TrainerConfig,
    *,
    variant: str = MAIN,
    follow: bool = False,
    report: Callable[[TrainProgress], None] | None = None,
) -> TrainSummary:
    """Train a variant on all committed windows; with `follow`, wait for more windows until SIGTERM or SIGINT.

    Raises
    ------
    CheckpointMismatchError
        If the store holds a checkpoint made with other settings.
    LogMismatchError
        If the checkpoint was trained on the windows of another commit log.
    CorruptArtefactError
        If a window's file is missing or corrupt.
    NodeLeftError
        If another node was asked to stop, and this node was not.
    ValueError
        If the settings do not fit the ranks or the device.
    """
    started, metrics, line = time.monotonic(), TrainerMetrics(), line_of(store, variant)
    with (
        none_left(),
        deterministic(),
        Workers.from_environment(config.device, config.rank_timeout_seconds) as workers,
        ended_by_signals() as stop,
    ):
        checkpoints = CheckpointLog(line, config.checkpoints_kept)
        checkpoints.require_log(CommitLog(store), workers)
        config = checkpoints.continued(config, workers)
        workers.share(config.batch_size)
        config.check_stream(workers.world_size)
        if workers.is_first:
            logger.info("all ranks have started")
        scraped = exposed(metrics.registry, config.metrics_host, config.metrics_port)
        with scraped if workers.is_first else nullcontext():
            exporter = Exporter(store, config, metrics, follow, variant)
            if workers.is_first:
                exporter.open_newest()
            state = checkpoints.load(config, workers) or TrainerState.fresh(config, workers.device, workers=workers)
            metrics.sequence.set(state.position.trained_sequence)
            for evaluation in state.recent:
                metrics.evaluated(evaluation)
            log, observer = WindowLog(store), ProgressObserver(line, metrics, workers.is_first, report)
            workers.first(partial(exporter.prepare, state), state.answer)
            # Background exports exist only in a follower, and each check is a collective.
            between = partial(exporter.publish_made, state) if follow else None
            learner = Learner(state, log, workers, stop, observer, checkpoints, exporter.review, between)
            for manifest in windows(
                log, state.position.sequence - 1, workers, stop, follow=follow, poll_seconds=config.poll_seconds
            ):
                if workers.is_first:
                    exporter.challenge()
                finished = manifest is None or learner.process_window(manifest)
                if finished and workers.broadcast(exporter.due(state)):
                    workers.first(partial(exporter.export_if_due, state), state.answer)
                # The bundle comes before the checkpoint: a run killed in between makes it again.
                if manifest is not None:
                    checkpoints.save(state, workers)
                if not finished:
                    break
            if not is_left_to_others(stop, workers) and state.position.trained_sequence >= 0:
                workers.first(partial(exporter.export, state), state.answer)
            require_asked(stop, workers)
            return observer.summary(state, exporter.newest, time.monotonic() - started, stopped=stop.is_set())
