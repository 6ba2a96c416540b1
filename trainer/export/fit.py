"""Fit of the lists of an IVF index: when to repair some, and when to train all of them again."""

from typing import Final

from weir.contracts import IndexFit

__all__ = ["is_outgrown", "is_unfit", "may_repair"]

_GROWTH: Final = 2.0
"""Growth of the catalogue since training at which all lists are trained again."""

_UNFIT_SHARE: Final = 0.2
"""Share of badly fitting items (5 % at training) among new and moved ones that triggers a repair.

It counts beyond the share left by the last repair: if all topics drift a little, a repair cannot help, and
the next one would append more lists in vain.
"""

_CHANGED: Final = 100
"""Least number of new and moved items for that share to be significant."""

_RECALL_LOST: Final = 0.05
"""Loss of recall on the newest queries since training that triggers a repair."""

_REPAIRS: Final = 8
"""Number of repairs after which all lists are trained again."""

_APPENDED: Final = 0.5
"""Most lists that repairs may append, as a share of the trained ones: every query is compared with all lists."""

_PAUSE_SECONDS: Final = 600.0
"""Seconds between two trainings triggered by a bad fit: an immediate retraining would not fit better."""


def is_unfit(fit: IndexFit) -> bool:
    """Return whether new and moved items, or the newest queries, show that the lists fit badly."""
    if fit.changed >= _CHANGED and fit.unfit > fit.unfit_left + _UNFIT_SHARE:
        return True
    if fit.recall is None or fit.recall_trained is None:
        return False
    return fit.recall < fit.recall_trained - _RECALL_LOST


def may_repair(fit: IndexFit, lists: int) -> bool:
    """Return whether another repair is allowed with this number of lists."""
    return lists < (1 + _APPENDED) * fit.trained_lists


def is_outgrown(fit: IndexFit, items: int, now: float, every_seconds: float | None) -> bool:
    """Return whether all lists should be trained: for growth, for age, or because repairs no longer help.

    Parameters
    ----------
    fit
        Fit of the newest export.
    items
        Items in the catalogue.
    now
        Wall clock, seconds since 1970.
    every_seconds
        Age at which lists are trained again in any case; None: at no age.
    """
    age = now - fit.trained_at
    if items >= _GROWTH * fit.trained_items or (every_seconds is not None and age >= every_seconds):
        return True
    return age >= _PAUSE_SECONDS and (fit.repairs >= _REPAIRS or is_unfit(fit))
