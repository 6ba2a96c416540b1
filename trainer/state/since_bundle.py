"""What has changed since the newest bundle, so that an export costs what has changed: a checkpoint holds it, too."""

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
"""If more than one in so many rows have changed, the next bundle is complete anyway, and nothing needs to be saved."""


class SinceBundle:
    """Rows touched, and keys of items that have lost theirs, since the bundle `ref`; None: nobody knows since when.

    What was not touched is off from that bundle by `bound` at most (`publish_bound`). `items` knows what is published,
    for where a step moves items that it does not touch; no checkpoint holds that. `fingerprint` is that of all rows.

    Parameters
    ----------
    touched
        Notes rows and keys.
    config
        The settings of the run.
    """

    def __init__(self, touched: TouchedOfAll, config: TrainerConfig) -> None:
        self.ref: BundleRef | None = None
        self.bound, self.touched, self._config = 0.0, touched, config
        self.items = PublishedItems(touched.table, touched.embeddings, config)
        self.fingerprint = Fingerprint(touched.table, touched.embeddings)

    def begins_at(self, ref: BundleRef) -> bool:
        """Say whether rows that were not touched are off from a bundle by no more than the bound of today."""
        return self.ref == ref and self.bound <= self._config.publish_bound

    def note(self, ref: BundleRef, bound: float | None = None) -> None:
        """Begin again: the state is what a bundle says, up to a bound, that of today unless given.

        Called as `Embeddings.fetch`.
        """
        self.ref, self.bound = ref, self._config.publish_bound if bound is None else bound
        self.touched.clear(Reader.BUNDLE)

    def snapshot(self) -> None:
        """Note what changes from here on, until `note_snapshot`; called as `note`.

        Until then all stays as it is: it is about the bundle before.
        """
        self.touched.clear(Reader.SNAPSHOT)

    def note_snapshot(self, ref: BundleRef) -> None:
        """Begin at the snapshot, of which a bundle has been made; called as `note`."""
        self.ref, self.bound = ref, self._config.publish_bound
        self.touched.take_over()

    def answer(self, question: str, now: Vectors) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
        return self.items.answer(question, now) or self.fingerprint.answer(question)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds; called as `Embeddings.fetch`."""
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
        """Take over what `state_dict` returned; where that is nothing, nothing is known."""
        self.ref, rows, left = None, torch.from_numpy(no_rows()), torch.empty(0, dtype=torch.int64)
        if state:
            known = json.loads(state["of"].numpy().tobytes())
            self.ref, self.bound = BundleRef.model_validate(known["ref"]), known["bound"]
            rows, left = state["rows"], state["left"]
        self.touched.restart(Reader.BUNDLE, rows, ItemKeys(left.numpy()))
