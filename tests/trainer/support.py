"""A state that has taken in a store's first window, and the batches of a window."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from weir.contracts import Store, WindowLog, WindowManifest
from weir.contracts.base.columns import COUNT, ITEM_ID, ITEM_KEY
from weir.trainer.export.servable import MOST
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.ingestion import ingest_window
from weir.trainer.state.tensor_files import Stateful, flatten
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Batch, batches
from weir.trainer.step.positives import Positives, SharedWindow, read_positives
from weir.trainer.step.seeds import Purpose, generator


def absorbed(
    store: Store,
    config: TrainerConfig,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    workers: Workers | None = None,
) -> TrainerState:
    """Return the state after taking in, not learning, the first window."""
    state, log = TrainerState.fresh(config, device, dtype, workers), WindowLog(store)
    for manifest in log.committed()[:1]:
        absorb(state, log, manifest)
    return state


def absorb(state: TrainerState, log: WindowLog, manifest: WindowManifest) -> None:
    """Take a window in without a test, and without learning it."""
    items = log.items(manifest)
    arrays = tuple(items[name].to_numpy() for name in (ITEM_KEY, ITEM_ID, COUNT))
    users = log.user_sketch(manifest), read_positives(log, manifest, 1).users
    features = log.item_features(manifest) if manifest.item_features.all else None
    ingest_window(state, manifest, log.sketch(manifest), arrays, users=users, features=features)


def drawn(store: Store, manifest: WindowManifest, config: TrainerConfig, count: int = MOST) -> Positives:
    """Return up to so many positives of a window, as a run draws them."""
    found = SharedWindow.read(WindowLog(store), manifest, config, Workers())
    return found.sampled(config.seed, manifest.sequence, count)


def batches_of(store: Store, state: TrainerState, sequence: int = 0) -> list[Batch]:
    log, config = WindowLog(store), state.config
    found = SharedWindow.read(log, log.committed()[sequence], config, state.embeddings.workers)
    order = generator(config.seed, Purpose.SHUFFLE, sequence)
    users, featured = state.users, state.featured_users
    return list(batches(found, state.table, config.batch_size, order, users=users, featured=featured))


def same_tensors(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    """Return the names under which two states differ in any bit."""
    bits: Callable[[torch.Tensor], bytes] = lambda tensor: tensor.contiguous().numpy().tobytes()  # noqa: E731
    return [name for name in left.keys() | right.keys() if bits(left[name]) != bits(right[name])]


def whole_tensors(state: TrainerState) -> dict[str, torch.Tensor]:
    """Return all that a state remembers, with the lines of all ranks in the order of rows; all ranks call it."""
    every = TableRows(np.arange(state.table.capacity))
    shared: dict[str, Stateful] = {"embeddings": state.embeddings, "table": state.table, "counts": state.counts}
    if state.featured is not None:
        shared["features"] = state.featured
    return state.tensors() | flatten(shared, every)


def give_noise(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Have parameters as if they had been trained, always the same."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=draw) / 3)


def collapse(state: TrainerState) -> None:
    """Give all items nearly the same embedding: all users are recommended the same arbitrary few."""
    noise = torch.randn(len(state.live), state.embeddings.weight.shape[1], generator=torch.Generator().manual_seed(1))
    state.embeddings.weight[state.live] = 1 + 1e-3 * noise
    state.embeddings.touched.mark(state.table.live)
