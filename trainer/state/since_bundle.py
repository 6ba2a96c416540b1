"""Rows changed since the newest bundle, so that an export costs only the changes; stored in checkpoints, too."""

import json
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from weir.contracts import ItemKeys
from weir.contracts.bundle_manifest import BundleRef
from weir.trainer.config import TrainerConfig
from weir.trainer.items.left_keys import TOO_MANY
from weir.trainer.items.rows import Reader, no_rows
from weir.trainer.state.fingerprint import Fingerprint
from weir.trainer.state.published import PublishedItems, Vectors
from weir.trainer.state.touched import TouchedOfAll

__all__ = ["SinceBundle"]

_SHARE: Final = 4
"""Above this fraction of changed rows, 1 / 4, the next bundle is complete anyway, and no rows are saved."""


class SinceBundle:
    """Rows touched and keys evicted since the bundle `ref`; None if no bundle is known.

    Untouched rows deviate from that bundle by at most `bound` (`publish_bound`). `items` holds the published vectors,
    for models whose steps move items they do not touch; it is not in checkpoints. `fingerprint` covers all rows.

    Parameters
    ----------
    touched
        Tracks touched rows and evicted keys.
    config
        Settings of the run.
    """

    def __init__(self, touched: TouchedOfAll, config: TrainerConfig) -> None:
        self.ref: BundleRef | None = None
        self.bound, self.touched, self._config = 0.0, touched, config
        self.items = PublishedItems(touched.table, touched.embeddings, config)
        self.fingerprint = Fingerprint(touched.table, touched.embeddings)

    def begins_at(self, ref: BundleRef) -> bool:
        """Return whether untouched rows deviate from the bundle `ref` by at most the current bound."""
        return self.ref == ref and self.bound <= self._config.publish_bound

    def note(self, ref: BundleRef, bound: float | None = None) -> None:
        """Reset: the state equals the bundle `ref`, up to `bound` (default: the current setting).

        Called as `Embeddings.fetch`.
        """
        self.ref, self.bound = ref, self._config.publish_bound if bound is None else bound
        self.touched.clear(Reader.BUNDLE)

    def snapshot(self) -> None:
        """Start tracking changes for `note_snapshot`; called as `note`.

        Until then, all data still refers to the previous bundle.
        """
        self.touched.clear(Reader.SNAPSHOT)

    def note_snapshot(self, ref: BundleRef) -> None:
        """Reset to the snapshot, which was published as the bundle `ref`; called as `note`."""
        self.ref, self.bound = ref, self._config.publish_bound
        self.touched.take_over()

    def answer(self, question: str, now: Vectors) -> bool:
        """Serve a query of rank 0, as the callback of `Workers.first`; return whether it was for this object."""
        return self.items.answer(question, now) or self.fingerprint.answer(question)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint; called as `Embeddings.fetch`."""
        if self.ref is None:
            return {}
        rows, left = self.touched.rows(Reader.BUNDLE), self.touched.left()
        if _SHARE * len(rows) > self.touched.table.capacity or TOO_MANY in left:
            return {}
        known = bytearray(json.dumps({"ref": self.ref.model_dump(), "bound": self.bound}).encode())
        return {
            "of": torch.frombuffer(known, dtype=torch.uint8),
            "rows": torch.from_numpy(rows),
            "left": torch.from_numpy(left),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`; an empty state resets to unknown."""
        self.ref, rows, left = None, torch.from_numpy(no_rows()), torch.empty(0, dtype=torch.int64)
        if state:
            known = json.loads(state["of"].numpy().tobytes())
            self.ref, self.bound = BundleRef.model_validate(known["ref"]), known["bound"]
            rows, left = state["rows"], state["left"]
        self.touched.restart(Reader.BUNDLE, rows, ItemKeys(left.numpy()))
