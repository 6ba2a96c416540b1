"""Export a bundle from the newest checkpoint."""

from weir.contracts import BundleManifest, CommitLog, Store
from weir.contracts.variants import MAIN, line_of
from weir.trainer.config import TrainerConfig
from weir.trainer.export.bundle import export_bundle
from weir.trainer.export.cases import RecentCases
from weir.trainer.export.errors import ExportError
from weir.trainer.export.keeper import Keeper
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog

__all__ = ["export"]


def export(store: Store, config: TrainerConfig, variant: str = MAIN) -> BundleManifest:
    """Export a bundle from the newest checkpoint of a line, with the settings `config`.

    Raises
    ------
    ExportError
        If there is no checkpoint, or the bundle cannot be made.
    CheckpointMismatchError
        If the checkpoint was made with other settings.
    LogMismatchError
        If it was trained on the windows of another commit log.
    """
    line = line_of(store, variant)
    checkpoints, workers = CheckpointLog(line, config.checkpoints_kept), Workers()
    checkpoints.require_log(CommitLog(store), workers)
    state = checkpoints.load(checkpoints.continued(config, workers), workers)
    if state is None:
        raise ExportError(f"{line.path('checkpoints')}: holds no complete checkpoint; train first")
    return export_bundle(line, state, RecentCases(store, state.config), keeper=Keeper(variant=variant))
