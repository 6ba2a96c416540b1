"""A client of another vector server, in an environment with that server's packages: `benchmarks.peers` runs it.

    PYTHON peer_client.py milvus|chroma HOST:PORT FOLDER fill
    PYTHON peer_client.py milvus|chroma HOST:PORT FOLDER tune EF
    PYTHON peer_client.py milvus|chroma HOST:PORT FOLDER ask EF CALLERS SECONDS

`fill` stores the vectors of FOLDER in an HNSW index by inner product; `tune` says how deep a server searches from its
next start on, where that is no parameter of a call; `ask` keeps so many calls under way, each with
one of the queries, and prints as JSON how many were answered, and what was found for the first of them.
"""

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

K = 100
BATCH = 5000
JUDGED = 100
LINKS, BUILD = 16, 200


class Milvus:
    """Milvus Lite."""

    def __init__(self, address: str) -> None:
        from pymilvus import DataType, MilvusClient  # noqa: PLC0415 - of another environment

        self.types, self.client = DataType, MilvusClient(uri=f"http://{address}")

    def fill(self, vectors: Any) -> None:
        """Store vectors, and have them indexed."""
        from pymilvus import MilvusException  # noqa: PLC0415 - of another environment

        schema = self.client.create_schema(auto_id=False)
        schema.add_field("id", self.types.VARCHAR, is_primary=True, max_length=32)
        schema.add_field("vector", self.types.FLOAT_VECTOR, dim=vectors.shape[1])
        index = self.client.prepare_index_params()
        params = {"M": LINKS, "efConstruction": BUILD}
        index.add_index("vector", index_type="HNSW", metric_type="IP", params=params)
        self.client.create_collection("items", schema=schema)
        for start in range(0, len(vectors), BATCH):
            rows = enumerate(vectors[start : start + BATCH].tolist(), start)
            self.client.insert("items", [{"id": str(number), "vector": vector} for number, vector in rows])
        self.client.flush("items")
        try:
            self.client.create_index("items", index)
        except MilvusException as error:
            # With many rows it takes longer than a connection lives: the client has repeated what is done.
            if "already exists" not in str(error):
                raise
        self.client.load_collection("items")

    def tune(self, depth: int) -> None:
        """Do nothing: each call says how deep it searches."""

    def asking(self, depth: int) -> Callable[[Any], list[str]]:
        """Return what finds ids, with so deep a search."""
        self.client.load_collection("items")
        params = {"metric_type": "IP", "params": {"ef": depth}}

        def ask(vector: Any) -> list[str]:
            found = self.client.search("items", data=[vector.tolist()], limit=K, search_params=params)
            return [hit["id"] for hit in found[0]]

        return ask


class Chroma:
    """Chroma."""

    def __init__(self, address: str) -> None:
        import chromadb  # noqa: PLC0415 - of another environment

        host, port = address.split(":")
        self.client = chromadb.HttpClient(host, int(port))

    def fill(self, vectors: Any) -> None:
        """Store vectors, and have them indexed."""
        hnsw = {"space": "ip", "max_neighbors": LINKS, "ef_construction": BUILD}
        items = self.client.create_collection("items", configuration={"hnsw": hnsw})
        for start in range(0, len(vectors), BATCH):
            some = vectors[start : start + BATCH]
            items.add(ids=[str(number) for number in range(start, start + len(some))], embeddings=some)

    def tune(self, depth: int) -> None:
        """Say how deep to search, from the next start on."""
        self.client.get_collection("items").modify(configuration={"hnsw": {"ef_search": depth}})

    def asking(self, _: int) -> Callable[[Any], list[str]]:
        """Return what finds ids."""
        items = self.client.get_collection("items")

        def ask(vector: Any) -> list[str]:
            return list(items.query(query_embeddings=[vector], n_results=K, include=[])["ids"][0])

        return ask


def asked(ask: Callable[[Any], list[str]], queries: Any, callers: int, seconds: float) -> int:
    """Keep so many calls under way for so long; return how many were answered."""
    numbers, ends = itertools.count(), time.monotonic() + seconds
    answered = [0] * callers

    def call(caller: int) -> None:
        while time.monotonic() < ends:
            ask(queries[next(numbers) % len(queries)])
            answered[caller] += 1

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


def main() -> None:
    """Do what the command line says."""
    kind, address, folder, task, *numbers = sys.argv[1:]
    peer: Milvus | Chroma = Milvus(address) if kind == "milvus" else Chroma(address)
    if task == "fill":
        peer.fill(np.load(Path(folder) / "vectors.npy"))
        return
    if task == "tune":
        peer.tune(int(numbers[0]))
        return
    queries = np.load(Path(folder) / "queries.npy")
    ask = peer.asking(int(numbers[0]))
    ask(queries[0])
    print(json.dumps({"is": "first"}), flush=True)
    print(json.dumps({"found": [ask(query) for query in queries[:JUDGED]]}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"answered": asked(ask, queries, int(numbers[1]), float(numbers[2]))}), flush=True)


if __name__ == "__main__":
    main()
