"""The settings of served lists."""

from pydantic import Field

from weir.contracts.models import FrozenModel

__all__ = ["ServedConfig"]


class ServedConfig(FrozenModel):
    """Which answers are kept in the store, and for how long."""

    share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of answers that are kept in the store, to be joined with what users do; with more than 0 "
        "servers need the right to write and remove below served/",
    )
    flush_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="how often a server writes a file of served lists, seconds; a killed one loses so much of them",
    )
    max_waiting_items: int = Field(
        default=1_000_000,
        ge=1000,
        description="items of lists that wait to be written, about 10 bytes each; lists beyond are dropped and counted",
    )
    keep_days: float = Field(
        default=7.0, ge=0, description="how long served lists stay after the hour in which they were kept, days"
    )
