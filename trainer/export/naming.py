"""Bundle identity: the name, derived from the stream position and a digest of the served state.

A run killed after an export makes the same bits again, hence the same name; other settings or another training give
another name, whatever the store contains.
"""

import json
from typing import Final

import numpy as np
import torch
import xxhash

from weir.trainer.config import RescoringConfig
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.state.codec import Stateful, array_of, flatten
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["name_of", "place_of"]

_DIGITS: Final = 8
"""Hexadecimal digits of the digest in a name: it must only distinguish bundles of one position in the stream."""

_UNNAMED: Final[dict[str, object]] = {
    "precision": "float32",
    "optimizer.embedding_memory": 1.0,
    "optimizer.embedding_decay": 0.0,
    "optimizer.embedding_scale": 1.0,
} | {f"rescoring.{name}": value for name, value in RescoringConfig().model_dump(exclude={"candidates"}).items()}
"""Settings that the digest omits if they have these values, by the names of `TrainerConfig.defining`."""


def name_of(state: TrainerState, *, at_all: bool = False) -> str:
    """Return the bundle name of a state; called as `Fingerprint.look`, with `at_all` over all rows."""
    return f"{place_of(state)}-{_digest(state, state.since.fingerprint.look(at_all=at_all))}"


def place_of(state: TrainerState) -> str:
    """Return the prefix of a name for the stream position; names sort by it."""
    at = state.position
    return f"{max(at.trained_sequence, 0):08d}-{at.step:010d}"


@torch.no_grad()
def _digest(state: TrainerState, fingerprint: int) -> str:
    digest = xxhash.xxh3_128()
    unused = () if state.config.rescoring.on else ("rescoring.",)
    defining = state.config.defining().items()
    named = [item for item in defining if item not in _UNNAMED.items() and not item[0].startswith(unused)]
    settings = dict(named) | {"index": state.config.index, "nprobe": state.config.nprobe}
    # The total distinguishes counts that were read from the sketch at different times.
    counted = {"time_ms": state.frequencies.time_ms, "log_total": state.counts.log_total}
    digest.update(json.dumps(settings | counted | {"items": fingerprint}, sort_keys=True).encode())
    served: dict[str, Stateful] = {"tower": state.tower, "frequencies": state.frequencies}
    if state.second is not None:
        served["scorer"] = state.second.scorer
    if state.featured is not None:
        # Feature values by item are omitted: they affect the trained weights.
        digest.update(state.featured.weights.encode())
    if state.featured_users is not None:
        digest.update(state.featured_users.weights.encode())
    for name, value in sorted(flatten(served).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array_of(value)).data)
    special = state.item_vectors(TableRows(np.arange(FIRST_ITEM)))
    digest.update(np.ascontiguousarray(array_of(special)).data)
    return str(digest.hexdigest()[:_DIGITS])
