"""Whether the lists of an index still fit: what calls for a local repair, and what for a training of all of them."""

from typing import Final

from weir.contracts import IndexFit

__all__ = ["is_outgrown", "is_unfit", "may_repair"]

_GROWTH: Final = 2.0
"""Times the items of the training at which the lists are too few."""

_UNFIT_SHARE: Final = 0.2
"""Share of new and moved items below the quantile (5 % of all were, at training) that calls for a repair.

It counts beyond the share that the newest repair has left: where all topics drift a little, a repair cannot help, and
the next one would append as many lists for nothing.
"""

_CHANGED: Final = 100
"""New and moved items below which their share says nothing."""

_RECALL_LOST: Final = 0.05
"""Loss of recall on the newest queries since training that calls for a repair."""

_REPAIRS: Final = 8
"""Repairs after which the lists are trained as a whole."""

_APPENDED: Final = 0.5
"""Lists that repairs may append until then, as a share of those trained: every query is compared with all of them."""

_PAUSE_SECONDS: Final = 600.0
"""Between two trainings that a bad fit asks for: what a fresh training does not fit, the next one will not either."""


def is_unfit(fit: IndexFit) -> bool:
    """Say whether new and moved items, or the newest queries, show that the lists fit badly."""
    if fit.changed >= _CHANGED and fit.unfit > fit.unfit_left + _UNFIT_SHARE:
        return True
    if fit.recall is None or fit.recall_trained is None:
        return False
    return fit.recall < fit.recall_trained - _RECALL_LOST


def may_repair(fit: IndexFit, lists: int) -> bool:
    """Say whether there is room for another repair, with so many lists."""
    return lists < (1 + _APPENDED) * fit.trained_lists


def is_outgrown(fit: IndexFit, items: int, now: float, every_seconds: float | None) -> bool:
    """Say whether all lists should be trained: for growth, for age, or because repairs no longer help.

    Parameters
    ----------
    fit
        Of the newest export.
    items
        Items in the catalogue.
    now
        Wall clock, seconds since 1970.
    every_seconds
        Age of the lists from which they are trained in any case; None: never for their age.
    """
    age = now - fit.trained_at
    if items >= _GROWTH * fit.trained_items or (every_seconds is not None and age >= every_seconds):
        return True
    return age >= _PAUSE_SECONDS and (fit.repairs >= _REPAIRS or is_unfit(fit))
