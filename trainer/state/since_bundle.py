"""What has changed since the newest bundle, so that an export costs what has changed: a checkpoint holds it, too."""

import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from contracts import ItemKeys
from contracts.bundle_manifest import BundleRef
from trainer.config import TrainerConfig
from trainer.items.rows import Reader, no_rows
from trainer.state.fingerprint import Fingerprint
from trainer.state.published import PublishedItems, Vectors
from trainer.state.touched import TouchedOfAll

__all__ = ["SinceBundle"]


class SinceBundle:
    """Rows touched, and keys of items that have lost theirs, since the bundle `ref`; None: nobody knows since when.

    What was not touched is off from that bundle by `bound` at most (`publish_bound`). `items` knows what is published,
    where a step moves items that it does not touch; no checkpoint holds that. `fingerprint` is that of all rows.

    Parameters
    ----------
    touched
        Notes rows and keys.
    config
        The settings of the run.
    """

    def __init__(self, touched: TouchedOfAll, config: TrainerConfig) -> None:
        self.ref: BundleRef | None = None
        self.bound, self._config, self._touched = 0.0, config, touched
        self.items = PublishedItems(touched.table, touched.embeddings, config)
        self.fingerprint = Fingerprint(touched.table, touched.embeddings)

    def knows(self, ref: BundleRef, *, all_move: bool) -> bool:
        """Say whether all that differs from a bundle is known, where a step moves all items, or those it touches."""
        is_since = self.ref == ref and self.bound <= self._config.publish_bound
        return is_since and (self.items.is_known or not all_move)

    def note(self, ref: BundleRef) -> None:
        """Begin again: the state is now what this bundle says, up to `publish_bound`; called as `Embeddings.fetch`."""
        self.ref, self.bound = ref, self._config.publish_bound
        self._touched.clear(Reader.BUNDLE)

    def answer(self, question: str, now: Vectors) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
        return self.items.answer(question, now) or self.fingerprint.answer(question)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds; called as `Embeddings.fetch`."""
        if self.ref is None:
            return {}
        known = json.dumps({"ref": self.ref.model_dump(), "bound": self.bound}).encode()
        lists = {"rows": self._touched.rows(Reader.BUNDLE), "left": self._touched.left()}
        return {"of": torch.frombuffer(bytearray(known), dtype=torch.uint8)} | {
            name: torch.from_numpy(values) for name, values in lists.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned; where that is nothing, nothing is known."""
        self.ref, rows, left = None, torch.from_numpy(no_rows()), torch.empty(0, dtype=torch.int64)
        if state:
            known = json.loads(state["of"].numpy().tobytes())
            self.ref, self.bound = BundleRef.model_validate(known["ref"]), known["bound"]
            rows, left = state["rows"], state["left"]
        self._touched.restart(Reader.BUNDLE, rows, ItemKeys(left.numpy().astype(np.int64)))
