"""Random settings by which a small store has many windows, files, checkpoints and bundles."""

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tests.pipelines.support import TYPES


class Plan(NamedTuple):
    """What a life is given: a folder, its first store and its log, the seed of all chance, and how many commands."""

    folder: Path
    store: str
    log: str
    seed: int
    commands: int

    @classmethod
    def of(cls, arguments: list[str]) -> "Plan":
        """Return the plan that a command line gives, as `arguments` made it."""
        folder, store, log, seed, commands = arguments
        return cls(Path(folder), store, log, int(seed), int(commands))

    def arguments(self) -> list[str]:
        """Return it as a command line."""
        return [str(one) for one in self]

    @property
    def is_remote(self) -> bool:
        """Say whether the store is on an object store."""
        return "://" in self.store


def settings_of(plan: Plan) -> dict[str, Any]:
    """Return the settings of a life, as a file for ``--config`` holds them."""
    rng, folder = random.Random(plan.seed), plan.folder
    pace = {"poll_seconds": 0.5 if plan.is_remote else 0.05, "metrics_port": 0}
    trainer = _trainer(rng)
    found = {
        "store": plan.store,
        "pipeline": _pipeline(rng, plan.log) | pace,
        "trainer": trainer | pace,
        "serving": _serving(rng, variants=bool(trainer["variants"])) | {"cache_dir": str(folder / "cache")} | pace,
        "monitor": {"k": [2, 5], "timeout_seconds": 20.0} | pace,
    }
    for name, file in (("catalogue", "catalogue.jsonl"), ("takedown", "takedown.txt")):
        if rng.random() < 0.6:
            found[name] = str(folder / file)
    return found


def _pipeline(rng: random.Random, log: str) -> dict[str, Any]:
    told = rng.choice([{}, {"item_features": _FEATURES}, {"user_features": _FEATURES}])
    return told | {
        "log": log,
        "event_types": TYPES,
        "window_seconds": rng.choice([60, 150, 400]),
        "allowed_lateness_seconds": rng.choice([0, 20]),
        "history_length": rng.choice([1, 4, 6]),
        "late_items": rng.choice([0, 2]),
        "seen_items": rng.choice([3, 1000]),
        "user_shards": rng.choice([1, 3]),
        "sketch": {"kind": rng.choice(["exact", "count_min"]), "width": 256, "depth": 2},
        "secret_keys": rng.random() < 0.3,
        "chunk_bytes": 4000,
        "idle_seconds": 0.3,
        "run_bytes": rng.choice([20_000, 1_000_000]),
    }


_FEATURES = {"categorical": ["genre"], "dense": ["price"]}


def _trainer(rng: random.Random) -> dict[str, Any]:
    return {
        "device": "cpu",
        "batch_size": 16,
        "tower": {"kind": rng.choice(["mean_pooling", "recency", "hstu"]), "dimension": 8, "history_length": 4},
        "negatives": {"uniform": rng.choice([4, 16])},
        "rescoring": {"kind": rng.choice(["none", "none", "mixture_of_logits"]), "candidates": 30},
        "variants": rng.choice([{}, {}, {"other": {"negatives": {"uniform": 7}}}]),
        "admit_after": rng.choice([1, 1, 3]),
        "item_ttl_seconds": rng.choice([None, 600]),
        "checkpoint_every_steps": rng.choice([3, 2000]),
        "evaluation_k": [2, 5],
        "gate_tolerance": 5.0,
    }


def _serving(rng: random.Random, *, variants: bool) -> dict[str, Any]:
    return {
        "front": rng.choice(["python", "native"]) if find_spec("weir_front") else "python",
        "processes": 1 if variants else rng.choice([1, 1, 2]),
        "deltas": rng.choice(["auto", "clone", "in_place"]),
        "cold_items": rng.choice([0, 5, 1000]),
        "served": {"share": rng.choice([0, 0.5, 1]), "flush_seconds": 0.3},
    }


def exports_of(rng: random.Random) -> dict[str, Any]:
    """Return settings of the trainer that may change from one run to the next."""
    return {
        "index": rng.choice(["auto", "Flat", "IVF4,SQfp16", "IVF8,Flat", "HNSW8"]),
        "nprobe": rng.choice([1, 8]),
        "publish_bound": rng.choice([0, 0.3]),
        "bundles_kept": rng.choice([1, 2, 3]),
        "bundle_chain": rng.choice([0, 1, 16]),
        "export_every_windows": rng.choice([1, 1, 3]),
    }
