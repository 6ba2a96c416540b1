"""The trainer's settings: one frozen, documented model."""

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["FeaturesConfig", "LossConfig", "NegativesConfig", "OptimizerConfig", "TowerConfig", "TrainerConfig"]

_OPERATIONAL: Final = frozenset(
    {
        "device",
        "checkpoint_every_steps",
        "checkpoints_kept",
        "export_every_windows",
        "export_every_seconds",
        "bundles_kept",
        "gate_tolerance",
        "gate_windows",
        "index",
        "nprobe",
        "poll_seconds",
        "metrics_host",
        "metrics_port",
    }
)

_Positive = Annotated[float, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


TowerKind = Literal["sasrec", "esasrec", "mean_pooling", "matrix_factorisation", "lightgcn"]


class TowerConfig(_Model):
    """The user tower and the similarity of its output to an item."""

    kind: TowerKind = Field(
        default="sasrec",
        description="causal self-attention over the history, plain or with gated layers (esasrec); a network over its "
        "mean; a vector per user, plain or propagated over the graph of interactions (the last two in `weir evaluate` "
        "and `weir bench` only)",
    )
    dimension: int = Field(default=64, ge=1, description="length of user and item vectors")
    history_length: int = Field(default=50, ge=1, description="newest items of a history that the tower reads")
    layers: int = Field(
        default=1, ge=1, description="transformer blocks, hidden layers (mean_pooling) or propagations (lightgcn)"
    )
    heads: int = Field(default=2, ge=1, description="attention heads; must divide the dimension")
    expansion: int = Field(default=4, ge=1, description="width of a block's hidden layer, in dimensions")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations dropped while training")
    normalised: bool = Field(default=True, description="cosine similarity (true) or the raw inner product")
    temperature: float = Field(default=0.1, gt=0, description="similarities are divided by it before the softmax")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dimension % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide dimension = {self.dimension}")
        return self

    @property
    def knows_users(self) -> bool:
        """Whether each user has a vector, and an example is a pair, instead of a history."""
        from trainer.towers import TOWERS  # noqa: PLC0415 - towers need these settings, and torch

        return TOWERS[self.kind].knows_users


class NegativesConfig(_Model):
    """Which items stand against the positive, and how their sampling bias is taken out."""

    in_batch: bool = Field(default=True, description="take the positives of the other rows of the global batch")
    in_batch_limit: int | None = Field(
        default=None, ge=1, description="at most so many of them, drawn anew for every step; null: all"
    )
    deduplicate: bool = Field(default=False, description="an item stands once among them, however often it occurs")
    uniform: int = Field(default=256, ge=0, description="items drawn uniformly from the table, per batch")
    per_row: int = Field(default=0, ge=0, description="items drawn uniformly for every row alone")
    bayesian_candidates: int = Field(
        default=0, ge=0, description="draws among which each per_row item is chosen as hard and likely true; 0: none"
    )
    mask_history: bool = Field(default=True, description="a user's own recent items are never negatives")
    correction: Literal["none", "standard", "improved"] = Field(
        default="improved", description="what is done about log Q; see trainer.losses.sampled_softmax"
    )
    density: Literal["mixture", "unigram"] = Field(
        default="mixture", description="log Q of mixed negatives: of the whole pool, or the in-batch one for all"
    )

    @model_validator(mode="after")
    def _candidates_for_rows(self) -> Self:
        if self.bayesian_candidates and not self.per_row:
            raise ValueError("bayesian_candidates are drawn for per_row negatives: set per_row to 1 or more")
        return self


LossKind = Literal[
    "sampled_softmax",
    "full_softmax",
    "bce",
    "gbce",
    "info_nce",
    "debiased_contrastive",
    "hard_contrastive",
    "debiased_positive",
    "bpr",
    "dpl",
    "resampled_softmax",
    "pointwise",
    "sogram",
]
_POOLED: Final = frozenset({"sampled_softmax", "info_nce", "bce", "gbce"})
_UNLABELLED: Final = frozenset({"debiased_contrastive", "hard_contrastive", "debiased_positive", "bpr", "dpl"})

_BATCH_ONLY: Final = frozenset({"resampled_softmax", "pointwise", "sogram"})


class LossConfig(_Model):
    """What is minimised; the functions of `trainer.losses` say what each setting means."""

    kind: LossKind = Field(default="sampled_softmax", description="see docs/losses.md for which to take")
    calibration: float = Field(default=0.75, ge=0, le=1, description="gbce: 0 is bce, 1 aims at probabilities")
    tau_plus: float = Field(
        default=0.01, gt=0, lt=1, description="debiased losses: chance that an unlabelled item is a positive"
    )
    beta: float = Field(default=1.0, ge=0, description="hard_contrastive: how much harder negatives weigh")
    floor: float = Field(default=0.01, gt=0, description="dpl: lower bound of the debiased term")
    companions: int = Field(
        default=0, ge=0, description="debiased losses: further positives of the same user beside each positive"
    )
    cache: int = Field(default=0, ge=0, description="resampled_softmax: slots of the item cache (XIR); 0: none (BIR)")
    cache_share: float = Field(default=0.5, ge=0, le=1, description="resampled_softmax: weight of the cache's part")
    objective: Literal["in_batch", "popularity", "pos_neg", "unbiased", "unbiased_omega"] = Field(
        default="unbiased", description="pointwise: which bias is taken out"
    )
    sampling: Literal["in_batch", "cross", "naive"] = Field(
        default="in_batch",
        description="pointwise: all pairs of the batch's users and items; of users and items drawn for themselves; or "
        "pairs drawn one by one (the last two, which need no correction, in `weir evaluate` and `weir bench` only)",
    )
    link: Literal["square", "logistic"] = Field(default="logistic", description="pointwise, sogram: loss of a score")
    omega: float = Field(default=1.0, ge=0, description="unbiased_omega: weight of the negatives")

    @property
    def asks_for_labels(self) -> bool:
        """Whether the loss samples cells of the label matrix, and must know which are positive."""
        return self.kind == "pointwise" and self.sampling != "in_batch"

    @property
    def asks_for_users(self) -> bool:
        """Whether the loss corrects for the frequency of users."""
        return self.kind in {"pointwise", "sogram"}

    def problem(self, negatives: NegativesConfig) -> str | None:
        """Say why these negatives do not fit the loss; None if they do."""
        own, uniform, in_batch = negatives.per_row > 0, negatives.uniform > 0, negatives.in_batch
        unlabelled, batch_only = self.kind in _UNLABELLED, self.kind in _BATCH_ONLY
        problems = {
            "takes a pool that all rows share: set negatives.in_batch or negatives.uniform, and per_row = 0": (
                self.kind in _POOLED and (own or not (in_batch or uniform))
            ),
            "takes uniform negatives: set negatives.in_batch = false": unlabelled and in_batch,
            "takes negatives of every row's own: set negatives.per_row = 1 and negatives.uniform = 0": (
                self.kind == "bpr" and (uniform or not own)
            ),
            "has no negatives: set negatives.uniform or negatives.per_row": unlabelled and not (uniform or own),
            "takes in-batch negatives only: set negatives.in_batch = true, uniform = 0, per_row = 0": (
                batch_only and (uniform or own or not in_batch)
            ),
            "needs further positives of the user: set loss.companions to 1 or more": (
                self.kind in {"debiased_positive", "dpl"} and not self.companions
            ),
        }
        return next((problem for problem, holds in problems.items() if holds), None)


class FeaturesConfig(_Model):
    """Item features; which there are, the windows say (`pipeline.item_features`)."""

    buckets: int = Field(
        default=4096,
        ge=0,
        lt=2**31,
        description="vectors that the values of all categorical features are hashed into; 0: features are not used",
    )


class OptimizerConfig(_Model):
    """AdamW for the tower, row-wise Adagrad for the item embeddings."""

    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's, for the tower")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's, for the tower")
    embedding_learning_rate: float = Field(default=0.1, gt=0, description="row-wise Adagrad's, for the embeddings")
    max_gradient_norm: float | None = Field(
        default=3.0,
        gt=0,
        description="where the norm of all gradients of a step together exceeds it, they are scaled down; null: never",
    )


class TrainerConfig(_Model):
    """Settings of `trainer.train.train`."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="every random draw derives from it and the position")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU where there is one")
    batch_size: int = Field(default=512, ge=2, description="examples per step over all ranks together")
    tower: TowerConfig = TowerConfig()
    negatives: NegativesConfig = NegativesConfig()
    loss: LossConfig = LossConfig()
    features: FeaturesConfig = FeaturesConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    half_life_seconds: _Positive | tuple[_Positive, ...] = Field(
        default=30 * 86400.0,
        description="event time after which a count of the frequency view has halved; several, ascending: each item "
        "takes the longest that agrees with all shorter ones",
    )
    admit_after: float = Field(
        default=1.0, gt=0, description="recent (decayed) occurrences after which an item gets a row of its own"
    )
    item_ttl_seconds: float | None = Field(
        default=None,
        gt=0,
        description="event time without an occurrence that costs an item its row; null: never",
    )

    evaluation_k: tuple[int, ...] = Field(default=(10, 20, 100), min_length=1, description="cut-offs of the metrics")
    evaluation_examples: int = Field(default=1000, ge=1, description="examples evaluated per window, at most")
    evaluation_filter_seen: bool = Field(default=False, description="rank the items that are not in the history only")

    checkpoint_every_steps: int = Field(default=2000, ge=1, description="steps between checkpoints within a window")
    checkpoints_kept: int = Field(default=2, ge=1, description="newest checkpoints kept")

    export_every_windows: int = Field(default=1, ge=1, description="windows between bundles")
    export_every_seconds: float | None = Field(
        default=None, gt=0, description="seconds between bundles instead of windows; checked after every window"
    )
    bundles_kept: int = Field(default=3, ge=1, description="newest bundles kept, besides the promoted one")
    gate_tolerance: float = Field(
        default=0.5, ge=0, description="relative loss of recall against the bundle before that is let through"
    )
    gate_windows: int = Field(default=5, ge=1, description="newest evaluations averaged for the bundle's manifest")
    index: str = Field(
        default="auto",
        min_length=1,
        description="FAISS factory string; auto: Flat, from 50,000 items on IVF with SQfp16",
    )
    nprobe: int = Field(default=32, ge=1, description="lists that an IVF index visits per query")

    poll_seconds: float = Field(default=0.3, gt=0, description="seconds between looks for new windows when following")
    metrics_host: str = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9102, ge=0, le=65535, description="of /metrics on rank 0; 0: any free port")

    @model_validator(mode="after")
    def _cutoffs_positive(self) -> Self:
        if min(self.evaluation_k) < 1 or len(set(self.evaluation_k)) < len(self.evaluation_k):
            raise ValueError(f"evaluation_k = {list(self.evaluation_k)}: cut-offs must be positive and distinct")
        return self

    @model_validator(mode="after")
    def _negatives_fit_the_loss(self) -> Self:
        if problem := self.loss.problem(self.negatives):
            raise ValueError(f"loss.kind = {self.loss.kind} {problem}")
        if self.loss.asks_for_labels and not self.tower.knows_users:
            from trainer.towers import kinds  # noqa: PLC0415 - as above

            allowed = " or ".join(kinds(knows_users=True))
            raise ValueError(f"loss.sampling = {self.loss.sampling} draws users: set tower.kind = {allowed}")
        return self

    @model_validator(mode="after")
    def _half_lives_ascend(self) -> Self:
        lives = self.half_life_seconds
        if isinstance(lives, tuple) and (not lives or any(b <= a for a, b in pairwise(lives))):
            raise ValueError(f"half_life_seconds = {list(lives)}: several half-lives must ascend")
        return self

    def defining(self) -> dict[str, object]:
        """Return the settings that decide what is learnt, flat (``tower.dimension``), as JSON values.

        A checkpoint may only be continued where all of them are equal; the others say when and where things
        are written and may change between runs.
        """
        flat: dict[str, object] = {}
        for name, value in self.model_dump(mode="json", exclude=set(_OPERATIONAL)).items():
            if isinstance(value, dict):
                flat |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                flat[name] = value
        return flat
