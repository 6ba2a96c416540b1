"""Ingest a window from its files: items, frequencies, users and features."""

from weir.contracts import UserKeys, WindowLog, WindowManifest
from weir.contracts.columns import COUNT, ITEM_ID, ITEM_KEY
from weir.trainer.items.table import RowChanges
from weir.trainer.state.ingestion import ingest_window
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.shared_window import SharedWindow

__all__ = ["ingest"]


def ingest(state: TrainerState, log: WindowLog, manifest: WindowManifest, found: SharedWindow) -> RowChanges:
    """Ingest a window with the positives `found`, before any step on it; return the admitted and evicted rows."""
    items = log.items(manifest)
    arrays = items[ITEM_KEY].to_numpy(), items[ITEM_ID].to_numpy(), items[COUNT].to_numpy()
    features = log.item_features(manifest) if manifest.item_features.all else None
    users = _users(state, log, manifest, found)
    return ingest_window(state, manifest, log.sketch(manifest), arrays, users=users, features=features)


def _users(
    state: TrainerState, log: WindowLog, manifest: WindowManifest, found: SharedWindow
) -> tuple[bytes, UserKeys] | None:
    """Read the sketch of users if the loss needs user counts."""
    if not state.config.loss.needs.user_counts:
        return None
    return log.user_sketch(manifest), UserKeys(found.whole(found.own.users))
