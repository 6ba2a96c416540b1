"""The methods compared by `weir bench losses`, as changes to one base configuration.

A row sets the loss and the negatives; tower, batch, optimiser and temperature come from the base configuration, the
same for all rows of a comparison.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from weir.trainer.config import LossConfig, NegativesConfig, TrainerConfig
from weir.trainer.offline.model import Estimator

__all__ = ["FAMILIES", "ROWS", "Row", "choose_rows"]

_N: Final = 256
"""Negatives in a shared pool that is not the whole batch."""

_IN_BATCH: Final = {"in_batch": True, "in_batch_limit": _N, "uniform": 0}
_UNIFORM: Final = {"in_batch": False, "uniform": _N}
_MIXED: Final = {"in_batch": True, "in_batch_limit": _N // 2, "uniform": _N // 2}
_WHOLE_BATCH: Final = {"in_batch": True, "in_batch_limit": None, "uniform": 0}
_OWN: Final = {"in_batch": False, "uniform": 0, "per_row": 1}


@dataclass(frozen=True)
class Row:
    """A method: its changes to the sections `loss` and `negatives`, and the frequency estimator for log Q."""

    negatives: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    estimator: Estimator = "exact"

    def configure(self, base: TrainerConfig, seed: int) -> TrainerConfig:
        """Return the configuration of a run."""
        plain = base.model_dump() | {"seed": seed}
        # Settings that a row leaves out take the default, so that rows are the same in every comparison.
        masked = {"mask_history": base.negatives.mask_history}
        plain["negatives"] = NegativesConfig().model_dump() | masked | self.negatives
        plain["loss"] = LossConfig().model_dump() | self.loss
        return TrainerConfig.model_validate(plain)


def _softmax(negatives: dict[str, Any], correction: str, **more: Any) -> Row:
    return Row({**negatives, "correction": correction, **more})


def _pointwise(objective: str) -> Row:
    return Row(_WHOLE_BATCH, {"kind": "pointwise", "objective": objective})


_SOFTMAX: Final = {
    "BCE": Row(_UNIFORM, {"kind": "bce"}),
    "gBCE": Row(_UNIFORM, {"kind": "gbce"}),
    "full softmax": Row(_UNIFORM, {"kind": "full_softmax"}),
    "uniform, none": _softmax(_UNIFORM, "none"),
    "uniform, standard": _softmax(_UNIFORM, "standard"),
    "uniform, improved": _softmax(_UNIFORM, "improved"),
    "in-batch, none": _softmax(_IN_BATCH, "none"),
    "in-batch, standard": _softmax(_IN_BATCH, "standard"),
    "in-batch, improved": _softmax(_IN_BATCH, "improved"),
    "in-batch without duplicates, none": _softmax(_IN_BATCH, "none", deduplicate=True),
    "in-batch without duplicates, improved": _softmax(_IN_BATCH, "improved", deduplicate=True),
    "mixed, none": _softmax(_MIXED, "none"),
    "mixed, standard": _softmax(_MIXED, "standard"),
    "mixed, improved": _softmax(_MIXED, "improved"),
    "mixed, standard, unigram": _softmax(_MIXED, "standard", density="unigram"),
    "mixed, improved, unigram": _softmax(_MIXED, "improved", density="unigram"),
}
"""Khrylchenko et al., "Correcting the LogQ Correction", RecSys 2025."""

_RESAMPLING: Final = {
    "SSL": _softmax(_WHOLE_BATCH, "none"),
    "SSL-Pop": _softmax(_WHOLE_BATCH, "standard"),
    "MNS": _softmax({**_WHOLE_BATCH, "uniform": 512}, "standard", density="unigram"),
    "G-Tower": Row({**_WHOLE_BATCH, "correction": "standard"}, estimator="gap"),
    "BIR": Row(_WHOLE_BATCH, {"kind": "resampled_softmax"}),
    "XIR": Row(_WHOLE_BATCH, {"kind": "resampled_softmax", "cache": 1024}),
}
"""Chen et al., "Cache-Augmented Inbatch Importance Resampling", NeurIPS 2022."""

_PAIRWISE: Final = {
    "BPR": Row(_OWN, {"kind": "bpr"}),
    "BPR with BNS": Row({**_OWN, "bayesian_candidates": 5}, {"kind": "bpr"}),
    "InfoNCE": Row(_UNIFORM, {"kind": "info_nce"}),
    "DCL": Row(_UNIFORM, {"kind": "debiased_contrastive", "tau_plus": 0.001}),
    "HCL": Row(_UNIFORM, {"kind": "hard_contrastive", "tau_plus": 0.001, "beta": 0.5}),
    "debiased positives": Row(_UNIFORM, {"kind": "debiased_positive", "tau_plus": 0.01, "extra_positives": 2}),
    "DPL": Row(_UNIFORM, {"kind": "dpl", "tau_plus": 0.001, "extra_positives": 5}),
}
"""Liu et al., "Debiased Pairwise Learning"; Troeshestova and Isachenko, for the debiased positives."""

_POINTWISE: Final = {
    "In-Batch": _pointwise("in_batch"),
    "Popularity": _pointwise("popularity"),
    "Pos-Neg": _pointwise("pos_neg"),
    "Unbiased": _pointwise("unbiased"),
    "Unbiased-omega": Row(_WHOLE_BATCH, {"kind": "pointwise", "objective": "unbiased_omega", "omega": 0.1}),
    "naive sampling": Row(_WHOLE_BATCH, {"kind": "pointwise", "sampling": "naive"}),
    "cross sampling": Row(_WHOLE_BATCH, {"kind": "pointwise", "sampling": "cross"}),
    "Sogram": Row(_WHOLE_BATCH, {"kind": "sogram"}),
}
"""Liu, Lin and Lin, "Examining the Bias of In-Batch Sampling"."""

FAMILIES: Final[dict[str, dict[str, Row]]] = {
    "softmax": _SOFTMAX,
    "resampling": _RESAMPLING,
    "pairwise": _PAIRWISE,
    "pointwise": _POINTWISE,
}

ROWS: Final = {name: row for family in FAMILIES.values() for name, row in family.items()}


def choose_rows(wanted: str) -> dict[str, Row]:
    """Return the rows listed in `wanted`: families, ``all``, or single rows, separated by semicolons.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    chosen: dict[str, Row] = {}
    for name in (part.strip() for part in wanted.split(";")):
        if name == "all":
            chosen |= ROWS
        elif name in FAMILIES:
            chosen |= FAMILIES[name]
        elif name in ROWS:
            chosen[name] = ROWS[name]
        else:
            allowed = f"all, {', '.join(FAMILIES)}; or rows: {'; '.join(ROWS)}"
            raise ValueError(f"rows = {name!r}: no such row or family; allowed: {allowed}")
    return chosen
