"""A bundle of the newest checkpoint."""

from contracts import BundleManifest, Store
from trainer.config import TrainerConfig
from trainer.export.bundle import export_bundle
from trainer.export.errors import ExportError
from trainer.ranks.workers import Workers
from trainer.state.checkpoint import CheckpointLog

__all__ = ["export"]


def export(store: Store, config: TrainerConfig) -> BundleManifest:
    """Export a bundle from the newest checkpoint.

    Raises
    ------
    ExportError
        If there is no checkpoint, or the bundle cannot be made.
    CheckpointMismatchError
        If the checkpoint was made with other settings.
    """
    checkpoints, workers = CheckpointLog(store, config.checkpoints_kept), Workers()
    state = checkpoints.load(checkpoints.continued(config, workers), workers)
    if state is None:
        raise ExportError(f"{store.path('checkpoints')}: holds no complete checkpoint; train first")
    return export_bundle(store, state)
