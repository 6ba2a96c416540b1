"""The trainer's settings: one frozen, documented model.

This module does not need torch, so that the command line can check settings at once.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from weir.contracts.base.errors import in_one_line
from weir.contracts.base.models import FrozenModel
from weir.contracts.bundles.variants import MAIN, VariantError, VariantName
from weir.runtime.listening import Host
from weir.trainer.settings.losses import LOSSES, LossConfig, NegativesConfig
from weir.trainer.settings.towers import TowerConfig, kinds

__all__ = [
    "FeaturesConfig",
    "LossConfig",
    "NegativesConfig",
    "OptimizerConfig",
    "RescoringConfig",
    "TowerConfig",
    "TrainerConfig",
]


_OPERATIONAL: Final = frozenset(
    {
        "device",
        "compiled",
        "evaluation_memory_mb",
        "checkpoint_every_steps",
        "checkpoints_kept",
        "export_every_windows",
        "export_every_seconds",
        "bundles_kept",
        "bundle_chain",
        "rollback_window_seconds",
        "gate_tolerance",
        "gate_windows",
        "index",
        "nprobe",
        "index_training_every_seconds",
        "publish_bound",
        "last_bundle_seconds",
        "poll_seconds",
        "rank_timeout_seconds",
        "metrics_host",
        "metrics_port",
        "variants",
        "promote_by",
    }
)

_OF_BUNDLES: Final = frozenset({"compiled", "index", "nprobe", "publish_bound"})
"""Operational settings that affect a bundle's content."""

_NOT_DEFINING: Final[dict[str, Any]] = dict.fromkeys(_OPERATIONAL, True) | {"rescoring": {"candidates"}}

_Positive = Annotated[float, Field(gt=0)]


class FeaturesConfig(FrozenModel):
    """Features of items and users; which there are, the windows say (`pipeline.item_features`, `user_features`)."""

    buckets: int = Field(
        default=4096,
        ge=0,
        lt=2**31,
        description="vectors that the values of all categorical features are hashed into, those of items and those of "
        "users each; 0: features are not used",
    )


class OptimizerConfig(FrozenModel):
    """AdamW for the tower, row-wise Adagrad for the item embeddings, which may forget."""

    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's, for the tower")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's, for the tower")
    embedding_learning_rate: float = Field(default=0.1, gt=0, description="row-wise Adagrad's, for the embeddings")
    embedding_memory: float = Field(
        default=0.99,
        gt=0,
        le=1,
        description="share of a row's sum of squared gradients that stays in a step that moves the row; 1: all of it, "
        "which is Adagrad, whose steps become shorter as long as the stream goes on",
    )
    embedding_decay: float = Field(
        default=0.0,
        ge=0,
        description="share of an embedding that is added to its gradient in a step that moves it (L2 regularisation)",
    )
    embedding_scale: float = Field(
        default=1.0, gt=0, description="length of an embedding before its first step, on average"
    )
    max_gradient_norm: float | None = Field(
        default=3.0,
        gt=0,
        description="where the norm of all gradients of a step together exceeds it, they are scaled down; null: never",
    )


class RescoringConfig(FrozenModel):
    """A scorer of pairs that is trained beside the towers, and scores the best items of the index again."""

    kind: Literal["none", "mixture_of_logits"] = Field(
        default="none", description="none: the index orders the answers; or a mixture of logits (MoL)"
    )
    user_components: int = Field(default=4, ge=1, description="component embeddings of a user")
    item_components: int = Field(default=4, ge=1, description="component embeddings of an item")
    dimension: int = Field(default=32, ge=1, description="length of a component embedding")
    hidden: int = Field(default=32, ge=1, description="width of the networks that weigh the pairs of components")
    temperature: float = Field(default=0.1, gt=0, description="the cosine of two components is divided by it")
    negatives: int = Field(
        default=256,
        ge=1,
        description="shared negatives that the second phase compares a row with, drawn again from those of the first "
        "one in each step, at most: they bound its memory and cost",
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's, for the second phase")
    candidates: int = Field(
        default=256, ge=1, le=1000, description="best items of the index that are scored again, per query"
    )

    @property
    def on(self) -> bool:
        """Whether the second phase is on."""
        return self.kind != "none"


class TrainerConfig(FrozenModel):
    """Settings of `weir.trainer.train.train`."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="every random draw derives from it and the position")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU where there is one")
    batch_size: int = Field(default=128, ge=2, description="examples per step over all ranks together")
    compiled: bool = Field(
        default=False,
        description="train with a user tower that torch.compile has compiled: faster on a GPU, and on a CPU with "
        "several layers, slower there with one; takes half a minute at each start, and a C++ compiler on the machine",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the products in the user tower while it trains, and in the softmax losses on a GPU; bfloat16 "
        "is faster on a GPU in batches of some 30,000, and on a CPU (AMX, AVX512-BF16) for recency with several "
        "layers. Everything else, and what is served, stays float32",
    )
    tower: TowerConfig = TowerConfig()
    negatives: NegativesConfig = NegativesConfig()
    loss: LossConfig = LossConfig()
    features: FeaturesConfig = FeaturesConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    rescoring: RescoringConfig = RescoringConfig()

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
    evaluation_memory_mb: int | None = Field(
        default=None,
        ge=1,
        description="MiB of scores that a rank holds at a time in the test of a window, at most, but those of one "
        "example at least; null: 128, or what 16 examples take, with which a large table is tested faster",
    )

    checkpoint_every_steps: int = Field(default=2000, ge=1, description="steps between checkpoints within a window")
    checkpoints_kept: int = Field(default=2, ge=1, description="newest checkpoints kept")

    export_every_windows: int = Field(default=1, ge=1, description="windows between bundles")
    export_every_seconds: float | None = Field(
        default=None, gt=0, description="seconds between bundles instead of windows; checked after every window"
    )
    bundles_kept: int = Field(default=3, ge=1, description="newest bundles kept, besides the promoted one")
    bundle_chain: int = Field(
        default=16,
        ge=0,
        description="deltas after a complete bundle at which the next one is due, which a follower writes beside the "
        "stream; 0: every bundle is complete",
    )
    rollback_window_seconds: float = Field(
        default=0.0, ge=0, description="bundles exported within this number of seconds are kept, however many they are"
    )
    gate_tolerance: float = Field(
        default=0.5, ge=0, description="relative loss of recall against the bundle before that is let through"
    )
    gate_windows: int = Field(default=5, ge=1, description="newest evaluations averaged for the bundle's manifest")
    index: str = Field(
        default="auto",
        min_length=1,
        description="FAISS factory string, flat while there are too few items to train it; auto: Flat, from 50,000 "
        "items on IVF with SQfp16",
    )
    nprobe: int = Field(default=32, ge=1, description="lists that an IVF index visits per query")
    index_training_every_seconds: float | None = Field(
        default=86400.0,
        gt=0,
        description="age at which the lists of an IVF index are trained again, beside the stream; null: never for age",
    )
    publish_bound: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="distance, relative to its length, that an item's vector may be off without being published again",
    )
    last_bundle_seconds: float = Field(
        default=20.0, ge=0, description="for what a follower still makes beside the stream when it is asked to stop"
    )

    poll_seconds: float = Field(default=0.3, gt=0, description="seconds between looks for new windows when following")
    rank_timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        description="seconds after which a rank that the others wait for counts as lost, and all start again; one that "
        "ends is missed at once",
    )
    metrics_host: Host = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9102, ge=0, le=65535, description="of /metrics on rank 0; 0: any free port")

    variants: dict[VariantName, dict[str, Any]] = Field(
        default_factory=dict,
        description="name -> settings of this section that a variant has in place of these; it is trained beside them, "
        "and challenges them (docs/serving.md). Its metrics_port is 10 above, the next one's 20",
    )
    promote_by: Literal["never", "recall", "clicks"] = Field(
        default="never",
        description="by which comparison a challenger that is better becomes the champion, without an operator",
    )

    @model_validator(mode="after")
    def _cutoffs_positive(self) -> Self:
        if min(self.evaluation_k) < 1 or len(set(self.evaluation_k)) < len(self.evaluation_k):
            raise ValueError(f"evaluation_k = {list(self.evaluation_k)}: cut-offs must be positive and distinct")
        return self

    @model_validator(mode="after")
    def _negatives_fit_the_loss(self) -> Self:
        if problem := self.loss.problem(self.negatives):
            raise ValueError(f"loss.kind = {self.loss.kind} {problem}")
        if self.loss.needs_labels and not self.tower.knows_users:
            allowed = " or ".join(kinds(knows_users=True))
            raise ValueError(f"loss.sampling = {self.loss.sampling} draws users: set tower.kind = {allowed}")
        if self.rescoring.on and self.loss.needs.negatives != "shared":
            allowed = ", ".join(kind for kind, needs in LOSSES.items() if needs.negatives == "shared")
            raise ValueError(
                f"rescoring.kind = {self.rescoring.kind} takes the shared negatives of the loss, and loss.kind = "
                f"{self.loss.kind} has none; allowed: {allowed}"
            )
        return self

    @model_validator(mode="after")
    def _half_lives_ascend(self) -> Self:
        lives = self.half_life_seconds
        if isinstance(lives, tuple) and (not lives or any(b <= a for a, b in pairwise(lives))):
            raise ValueError(f"half_life_seconds = {list(lives)}: several half-lives must ascend")
        return self

    @model_validator(mode="after")
    def _variants_can_be_trained(self) -> Self:
        for name in self.variants:
            try:
                changed = self.of_variant(name).defining() != self.defining()
            except ValidationError as error:
                raise ValueError(f"variants.{name}: {in_one_line(error)}") from None
            if name == MAIN or not changed:
                problem = "is the name of these settings" if name == MAIN else "changes nothing of what is trained"
                raise ValueError(f"variants.{name}: {problem}")
        return self

    def of_variant(self, name: str) -> Self:
        """Return the settings of a variant; for `MAIN`, these settings without variants. Raises `VariantError`."""
        plain = self.model_dump(exclude_unset=True, exclude={"variants"})
        if name == MAIN:
            return type(self).model_validate(plain)
        if name not in self.variants:
            raise VariantError(f"trainer.variants: there is no {name}; allowed: {', '.join((MAIN, *self.variants))}")
        port = self.metrics_port and self.metrics_port + 10 * (1 + list(self.variants).index(name))
        return type(self).model_validate(_overlaid(plain | {"metrics_port": port}, self.variants[name]))

    def check_stream(self, ranks: int) -> None:
        """Raise `ValueError` for a tower with a vector per user, or a loss that cannot be split over `ranks`."""
        if self.tower.knows_users:
            raise ValueError(
                f"tower.kind = {self.tower.kind} knows users by id and trains in `weir evaluate` and `weir bench` "
                f"only; allowed here: {', '.join(kinds(knows_users=False))}"
            )
        if self.loss.needs.user_counts and ranks > 1:
            raise ValueError(f"loss.kind = {self.loss.kind} is a loss of the whole batch: train it with one rank")

    def recipe(self) -> dict[str, Any]:
        """Return the settings that determine a bundle's content, as in a settings file; others stay at defaults."""
        unused = set() if self.rescoring.on else {"rescoring"}
        return self.model_dump(mode="json", exclude=set(_OPERATIONAL - _OF_BUNDLES) | unused)

    def defining(self) -> dict[str, object]:
        """Return the settings that determine training, flat (``tower.dimension``), as JSON values.

        A checkpoint can only be continued if all of them are equal; the other settings control when and where data
        is written and may change between runs.
        """
        flat: dict[str, object] = {}
        for name, value in self.model_dump(mode="json", exclude=_NOT_DEFINING).items():
            if isinstance(value, dict):
                flat |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                flat[name] = value
        return flat

    def given(self) -> set[str]:
        """Return the settings given explicitly, by the names of `defining`; others have their defaults."""
        found: set[str] = set()
        for name in self.model_fields_set:
            value = getattr(self, name)
            found |= {f"{name}.{key}" for key in value.model_fields_set} if isinstance(value, FrozenModel) else {name}
        return found

    def continuing(self, saved: Mapping[str, object]) -> Self:
        """Return these settings, with values of `saved` (by the names of `defining`) for settings not given here."""
        wanted, given = self.defining(), self.given()
        plain = self.model_dump(exclude_unset=True)
        for name in saved.keys() & wanted.keys() - given:
            if saved[name] != wanted[name]:
                section, _, key = name.rpartition(".")
                (plain.setdefault(section, {}) if section else plain)[key] = saved[name]
        return type(self).model_validate(plain)


def _overlaid(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some values replaced, also within sections."""
    found = dict(plain)
    for name, value in changes.items():
        inside = isinstance(value, Mapping) and isinstance(found.get(name, {}), Mapping)
        found[name] = _overlaid(found.get(name, {}), value) if inside else value
    return found
