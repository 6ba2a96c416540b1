"""Registry of the training losses: settings, source of negatives, and inputs that a step must build.

A new loss is one line here, one file in `trainer/losses/`, one test and one row in docs/losses.md: see CONTRIBUTING.md.
This module does not need torch, so that the command line can check settings at once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from weir.contracts.base.models import FrozenModel

__all__ = ["LOSSES", "LossConfig", "LossKind", "LossNeeds", "NegativesConfig"]

NegativesOf = Literal["shared", "catalogue", "unlabelled", "own", "batch", "grid"]
"""Source of a loss's negatives.

``shared``: a pool shared by all rows, without accidental hits. ``catalogue``: all items, without the hits.
``unlabelled``: uniform samples, shared or per row, which may include positives. ``own``: as unlabelled, but per row
only. ``batch``: the batch's positives, with their densities. ``grid``: the batch's positives, as pairs with its users.
"""


@dataclass(frozen=True, slots=True)
class LossNeeds:
    """Function and inputs of one loss: an entry of `LOSSES`.

    `function` is ``module:function`` in `weir.trainer.losses`; it takes `LossInputs` and the settings of the trainer
    and returns losses (b,). A step builds only the inputs requested here: `negatives`, their `log_q`, further
    positives of each row's user, the `population` of the label matrix, and how often each user occurs in the stream.
    A loss that `weighs` shared negatives gets each distinct item once, with its multiplicity.
    """

    function: str
    negatives: NegativesOf
    log_q: bool = False
    weighs: bool = False
    extra_positives: Literal["none", "optional", "required"] = "none"
    population: bool = False
    user_counts: bool = False

    @property
    def masks_hits(self) -> bool:
        """Whether shared negatives that are known positives of the user are masked."""
        return self.negatives in {"shared", "catalogue"}

    @property
    def own(self) -> bool:
        """Whether rows may have their own negatives."""
        return self.negatives in {"unlabelled", "own"}

    @property
    def columns(self) -> bool:
        """Whether the loss compares rows with shared columns."""
        return self.negatives not in {"own", "grid"}


LOSSES: Final = {
    "sampled_softmax": LossNeeds("softmax:sampled_softmax_of", "shared", log_q=True, weighs=True),
    "full_softmax": LossNeeds("softmax:softmax_of", "catalogue"),
    "bce": LossNeeds("binary:bce_of", "shared"),
    "gbce": LossNeeds("binary:gbce_of", "shared", population=True),
    "info_nce": LossNeeds("softmax:softmax_of", "shared", weighs=True),
    "debiased_contrastive": LossNeeds("contrastive:debiased_contrastive_of", "unlabelled", extra_positives="optional"),
    "hard_contrastive": LossNeeds("contrastive:hard_contrastive_of", "unlabelled", extra_positives="optional"),
    "debiased_positive": LossNeeds("contrastive:debiased_positive_of", "unlabelled", extra_positives="required"),
    "bpr": LossNeeds("pairwise:bpr_of", "own"),
    "dpl": LossNeeds("pairwise:dpl_of", "unlabelled", extra_positives="required"),
    "resampled_softmax": LossNeeds("resampling:resampled_softmax_of", "batch", log_q=True),
    "pointwise": LossNeeds("pointwise:pointwise_of", "grid", population=True, user_counts=True),
    "sogram": LossNeeds("pointwise:sogram_of", "grid", population=True, user_counts=True),
}

if TYPE_CHECKING:
    LossKind = str
else:
    LossKind = Literal[tuple(LOSSES)]


class NegativesConfig(FrozenModel):
    """Where negatives come from, and how their sampling bias is corrected."""

    in_batch: bool = Field(default=True, description="use the positives of the other rows of the global batch")
    in_batch_limit: int | None = Field(
        default=None, ge=1, description="use at most this many of them, drawn again for each step; null: all"
    )
    deduplicate: bool = Field(default=False, description="count an item once among them, however often it occurs")
    uniform: int = Field(default=256, ge=0, description="items drawn uniformly from the table, per batch")
    per_row: int = Field(default=0, ge=0, description="items drawn uniformly for each row")
    bayesian_candidates: int = Field(
        default=0,
        ge=0,
        description="candidates per per_row negative; the hardest probable true negative is kept; 0: off",
    )
    exposed: int = Field(
        default=0,
        ge=0,
        le=100,
        description="items that were shown beside each positive and not chosen, at most; the positive is compared with "
        "them in a term of its own, beside any loss (needs pipeline.exposed_items); 0: off",
    )
    exposed_weight: float = Field(default=1.0, gt=0, description="weight of that term against the loss")
    mask_history: bool = Field(default=True, description="never use a user's own recent items as negatives")
    correction: Literal["none", "standard", "improved"] = Field(
        default="improved", description="log Q correction; see weir.trainer.losses.sampled_softmax"
    )
    density: Literal["mixture", "unigram"] = Field(
        default="mixture", description="log Q of mixed negatives: that of the whole pool, or the in-batch one for all"
    )

    @model_validator(mode="after")
    def _candidates_for_rows(self) -> Self:
        if self.bayesian_candidates and not self.per_row:
            raise ValueError("bayesian_candidates are drawn for per_row negatives: set per_row to 1 or more")
        return self


class LossConfig(FrozenModel):
    """The loss and its settings; the functions of `weir.trainer.losses` say what each setting means."""

    kind: LossKind = Field(default="sampled_softmax", description="docs/losses.md says which to choose")
    calibration: float = Field(default=0.75, ge=0, le=1, description="gbce: 0 is bce, 1 aims at probabilities")
    tau_plus: float = Field(
        default=0.01, gt=0, lt=1, description="debiased losses: chance that an unlabelled item is a positive"
    )
    beta: float = Field(default=1.0, ge=0, description="hard_contrastive: how much harder negatives weigh")
    floor: float = Field(default=0.01, gt=0, description="dpl: lower bound of the debiased term")
    extra_positives: int = Field(
        default=0,
        ge=0,
        validation_alias=AliasChoices("extra_positives", "companions"),
        description="debiased losses: further positives of the same user with each positive",
    )
    cache: int = Field(default=0, ge=0, description="resampled_softmax: slots of the item cache (XIR); 0: none (BIR)")
    cache_share: float = Field(default=0.5, ge=0, le=1, description="resampled_softmax: weight of the cache's part")
    objective: Literal["in_batch", "popularity", "pos_neg", "unbiased", "unbiased_omega"] = Field(
        default="unbiased", description="pointwise: which bias is corrected"
    )
    sampling: Literal["in_batch", "cross", "naive"] = Field(
        default="in_batch",
        description="pointwise: all pairs of the batch's users and items; independent draws in all pairs; "
        "or single pairs (the last two need no correction and work in `weir evaluate` and `weir bench` only)",
    )
    link: Literal["square", "logistic"] = Field(default="logistic", description="pointwise, sogram: loss of a score")
    omega: float = Field(default=1.0, ge=0, description="unbiased_omega: weight of the negatives")

    @property
    def needs(self) -> LossNeeds:
        """Inputs that a step must build for the loss."""
        return LOSSES[self.kind]

    @property
    def needs_labels(self) -> bool:
        """Whether the loss samples cells of the label matrix and needs their labels."""
        return self.kind == "pointwise" and self.sampling != "in_batch"

    def problem(self, negatives: NegativesConfig) -> str | None:
        """Return why these negatives do not fit the loss; None if they do."""
        own, uniform, in_batch = negatives.per_row > 0, negatives.uniform > 0, negatives.in_batch
        takes = self.needs.negatives
        unlabelled, batch_only = takes in {"unlabelled", "own"}, takes in {"batch", "grid"}
        problems = {
            "takes a pool that all rows share: set negatives.in_batch or negatives.uniform, and per_row = 0": (
                takes == "shared" and (own or not (in_batch or uniform))
            ),
            "takes uniform negatives: set negatives.in_batch = false": unlabelled and in_batch,
            "takes negatives of every row's own: set negatives.per_row = 1 and negatives.uniform = 0": (
                takes == "own" and (uniform or not own)
            ),
            "has no negatives: set negatives.uniform or negatives.per_row": unlabelled and not (uniform or own),
            "takes in-batch negatives only: set negatives.in_batch = true, uniform = 0, per_row = 0": (
                batch_only and (uniform or own or not in_batch)
            ),
            "needs further positives of the user: set loss.extra_positives to 1 or more": (
                self.needs.extra_positives == "required" and not self.extra_positives
            ),
        }
        return next((problem for problem, holds in problems.items() if holds), None)
