"""Damage to one or two files of a store, drawn from a seed, on a copy that shares all other files."""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from weir.contracts import Store


@dataclass(frozen=True)
class Mutation:
    """One fault: what was done, and to which files; `names` are relative to the store."""

    how: str
    names: tuple[str, ...]


def linked_copy(source: Path, target: Path) -> Store:
    """Copy a store by hard links: files of a store are replaced, never written to, so the original stays as it is."""
    shutil.copytree(source, target, copy_function=os.link)
    return Store(str(target))


def mutate(store: Store, name: str, others: list[str], rng: random.Random) -> Mutation:
    """Flip a bit of a file, cut it short, or let it change places with another one of its kind (else any other)."""
    data = store.read(name)
    swappable = [other for other in others if store.read(other) != data]
    how = rng.choice(["flip", "cut", "swap"]) if swappable else rng.choice(["flip", "cut"])
    if how == "swap":
        other = rng.choice(swappable)
        there = store.read(other)
        store.write(other, data)
        store.write(name, there)
        return Mutation(f"swapped {name} and {other}", (name, other))
    if how == "cut":
        size = rng.randrange(len(data))
        store.write(name, data[:size])
        return Mutation(f"cut {name} to {size} of {len(data)} bytes", (name,))
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    altered = bytearray(data)
    altered[place] ^= 1 << bit
    store.write(name, bytes(altered))
    return Mutation(f"flipped bit {bit} of byte {place} of {name}", (name,))
