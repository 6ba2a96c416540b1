"""Whether a store can hold a commit log: of two writers that create one file at once, exactly one may succeed."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

from weir.contracts.storage import Store, UnfitStoreError

__all__ = ["check_fitness"]


def check_fitness(store: Store, races: int = 8) -> None:
    """Refuse a file system on which two writers can both create a file.

    Raises
    ------
    UnfitStoreError
        If of two simultaneous writers other than exactly one succeeds, in any of so many races.
    """
    with ThreadPoolExecutor(2) as pool:
        for _ in range(races):
            name, start = f"commits/.race-{secrets.token_hex(8)}", Barrier(2)
            try:
                won = list(pool.map(partial(_race, store, name, start), (b"one", b"two")))
                kept = store.read(name)
            finally:
                store.remove(name)
            if won not in ([True, False], [False, True]) or kept != (b"one" if won[0] else b"two"):
                protocol = store.url.partition("://")[0]
                problem = f"of two writers that created one file at once, {sum(won)} got the answer that they had"
                raise UnfitStoreError(
                    f"{store.url}: {protocol}:// has no conditional create ({problem}), which commits need: "
                    "use local disk, or an object store that puts only if absent, such as s3://"
                )


def _race(store: Store, name: str, start: Barrier, who: bytes) -> bool:
    start.wait(30)
    return store.create(name, who)
