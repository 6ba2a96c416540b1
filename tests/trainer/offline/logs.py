"""Small interactions and settings, for the tests of learning outside the stream."""

from typing import Any

import numpy as np

from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.settings.trainer import TrainerConfig


def log_of(users: list[int], items: list[int] | None = None, *, sizes: tuple[int, int] | None = None) -> Interactions:
    """Return interactions in the order given; by default every one has an item of its own, by its number."""
    items = list(range(len(users))) if items is None else items
    user_count, item_count = sizes or (max(users) + 1, max(items) + 1)
    rows = np.arange(len(users))
    numbers = np.array(users, np.int64), np.array(items, np.int64)
    return Interactions("log.jsonl", *numbers, rows, np.arange(user_count), np.arange(item_count))


def circles(users: int = 20, items: int = 12, each: int = 15) -> Interactions:
    """Return a log in which every user goes around the same circle of items, each from a place of her own."""
    user, step = np.arange(users * each) % users, np.arange(users * each) // users
    return log_of(user.tolist(), ((3 * user + step) % items).tolist())


def everything(log: Interactions) -> Ints:
    return np.arange(len(log))


def small(kind: str = "sasrec", **sections: dict[str, Any] | int) -> TrainerConfig:
    """Return settings that learn in milliseconds; `sections` change them."""
    free = {"normalised": False, "temperature": 1.0} if kind in {"matrix_factorisation", "lightgcn"} else {}
    plain: dict[str, Any] = {
        "batch_size": 16,
        "tower": {"kind": kind, "dimension": 8, "history_length": 5, "heads": 2, "expansion": 1, **free},
        "negatives": {"uniform": 8, "mask_history": False},
    }
    for name, values in sections.items():
        plain[name] = plain.get(name, {}) | values if isinstance(values, dict) else values
    return TrainerConfig.model_validate(plain)
