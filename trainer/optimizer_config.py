"""Settings of the optimisers."""

from pydantic import Field

from weir.contracts.models import FrozenModel

__all__ = ["OptimizerConfig"]


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
