"""The trainer's settings: one frozen, documented model."""

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["NegativesConfig", "OptimizerConfig", "TowerConfig", "TrainerConfig"]

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
        "metrics_port",
    }
)


_Positive = Annotated[float, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TowerConfig(_Model):
    """The user tower and the similarity of its output to an item."""

    kind: Literal["sasrec", "mean_pooling"] = Field(
        default="sasrec", description="causal self-attention over the history, or a network over its mean"
    )
    dimension: int = Field(default=64, ge=1, description="length of user and item vectors")
    history_length: int = Field(default=50, ge=1, description="newest items of a history that the tower reads")
    layers: int = Field(default=1, ge=1, description="transformer blocks (sasrec) or hidden layers (mean_pooling)")
    heads: int = Field(default=2, ge=1, description="attention heads; must divide the dimension")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations dropped while training")
    normalised: bool = Field(default=True, description="cosine similarity (true) or the raw inner product")
    temperature: float = Field(default=0.1, gt=0, description="similarities are divided by it before the softmax")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dimension % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide dimension = {self.dimension}")
        return self


class NegativesConfig(_Model):
    """Which items stand against the positive, and how their sampling bias is taken out."""

    in_batch: bool = Field(default=True, description="take the positives of the other rows of the global batch")
    uniform: int = Field(default=256, ge=0, description="items drawn uniformly from the table, per batch")
    mask_history: bool = Field(default=True, description="a user's own recent items are never negatives")
    correction: Literal["none", "standard", "improved"] = Field(
        default="improved", description="what is done about log Q; see trainer.losses.sampled_softmax"
    )

    @model_validator(mode="after")
    def _any_negative(self) -> Self:
        if not self.in_batch and not self.uniform:
            raise ValueError("there are no negatives: set in_batch = true or uniform above 0")
        return self


class OptimizerConfig(_Model):
    """AdamW for the tower, row-wise Adagrad for the item embeddings."""

    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's, for the tower")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's, for the tower")
    embedding_learning_rate: float = Field(default=0.1, gt=0, description="row-wise Adagrad's, for the embeddings")


class TrainerConfig(_Model):
    """Settings of `trainer.train.train`."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="every random draw derives from it and the position")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU where there is one")
    batch_size: int = Field(default=512, ge=2, description="examples per step over all ranks together")
    tower: TowerConfig = TowerConfig()
    negatives: NegativesConfig = NegativesConfig()
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
        default=0.5, ge=0, description="relative loss of recall against the current bundle that is let through"
    )
    gate_windows: int = Field(default=5, ge=1, description="newest evaluations averaged for the gate and the manifest")
    index: str = Field(
        default="auto",
        min_length=1,
        description="FAISS factory string; auto: Flat, from 50,000 items on IVF with SQfp16",
    )
    nprobe: int = Field(default=32, ge=1, description="lists that an IVF index visits per query")

    poll_seconds: float = Field(default=0.3, gt=0, description="seconds between looks for new windows when following")
    metrics_port: int = Field(default=9102, ge=0, le=65535, description="of /metrics on rank 0; 0: any free port")

    @model_validator(mode="after")
    def _cutoffs_positive(self) -> Self:
        if min(self.evaluation_k) < 1 or len(set(self.evaluation_k)) < len(self.evaluation_k):
            raise ValueError(f"evaluation_k = {list(self.evaluation_k)}: cut-offs must be positive and distinct")
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
