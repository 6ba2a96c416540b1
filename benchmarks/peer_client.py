"""A client of Chroma, in an environment with its packages: `benchmarks.peers` runs it.

    PYTHON peer_client.py HOST:PORT FOLDER fill
    PYTHON peer_client.py HOST:PORT FOLDER tune EF
    PYTHON peer_client.py HOST:PORT FOLDER ask CALLERS SECONDS

`fill` stores the vectors of FOLDER in an HNSW index by inner product; `tune` says how deep the server searches from its
next start on; `ask` keeps so many calls under way, each with one of the queries, and prints as JSON what was found for
the first of them, and how many were answered once a line comes in.
"""

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import chromadb
import numpy as np

K = 100
BATCH = 5000
JUDGED = 100
HNSW = {"space": "ip", "max_neighbors": 16, "ef_construction": 200}


def fill(client: Any, vectors: Any) -> None:
    """Store vectors, and have them indexed."""
    items = client.create_collection("items", configuration={"hnsw": HNSW})
    for start in range(0, len(vectors), BATCH):
        some = vectors[start : start + BATCH]
        items.add(ids=[str(number) for number in range(start, start + len(some))], embeddings=some)


def found(items: Any, vector: Any) -> list[str]:
    """Return the ids of the best items of a vector."""
    return list(items.query(query_embeddings=[vector], n_results=K, include=[])["ids"][0])


def answered(items: Any, queries: Any, callers: int, seconds: float) -> int:
    """Keep so many calls under way for so long; return how many were answered."""
    numbers, ends = itertools.count(), time.monotonic() + seconds
    counts = [0] * callers

    def call(caller: int) -> None:
        while time.monotonic() < ends:
            found(items, queries[next(numbers) % len(queries)])
            counts[caller] += 1

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def main() -> None:
    """Do what the command line says."""
    address, folder, task, *numbers = sys.argv[1:]
    host, port = address.split(":")
    client = chromadb.HttpClient(host, int(port))
    if task == "fill":
        fill(client, np.load(Path(folder) / "vectors.npy"))
        return
    items = client.get_collection("items")
    if task == "tune":
        items.modify(configuration={"hnsw": {"ef_search": int(numbers[0])}})
        return
    queries = np.load(Path(folder) / "queries.npy")
    found(items, queries[0])
    print(json.dumps({"is": "first"}), flush=True)
    print(json.dumps({"found": [found(items, query) for query in queries[:JUDGED]]}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"answered": answered(items, queries, int(numbers[0]), float(numbers[1]))}), flush=True)


if __name__ == "__main__":
    main()
