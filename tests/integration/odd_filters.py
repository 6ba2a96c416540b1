"""Filters, caps on tags and a catalogue for hostile requests."""

import json
import random
from pathlib import Path
from typing import Final

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import by_history

ITEMS: Final = 20_000
TAGS: Final = 2000


def large_request(rng: random.Random) -> bytes:
    """Return a request with as large a filter as there may be, like no other, and a cap that most items run into."""
    some = [f"tag-{number}" for number in rng.sample(range(TAGS), 200)]
    request = pb.RetrieveRequest(
        queries=[by_history([f"item-{rng.randrange(ITEMS)}"], 100)] * 64,
        filter=pb.Filter(
            any_tags=["half", *some[:99]],
            none_tags=some[100:],
            allowed_item_ids=[f"item-{number}" for number in rng.sample(range(ITEMS), 10_000)],
        ),
        diversity=pb.Diversity(max_per_tag=1),
    )
    return request.SerializeToString()


def odd_request(rng: random.Random) -> bytes:
    """Return a request whose filter, availability and diversity are as odd as can be; one in eight is no message."""
    odd = ["", "half", "all", "tag-7", "\x00", "é" * 256, "x" * 512, "x" * 513, "🎷" * 200, "' OR 1=1 --", "../..", "|"]

    def some(values: list[str], most: int) -> list[str]:
        return rng.choices(values, k=rng.choice([0, 0, 1, 2, most]))

    request = pb.RetrieveRequest(
        queries=[by_history([f"item-{rng.randrange(ITEMS)}"], rng.choice([1, 10, 1000]))],
        filter=pb.Filter(
            any_tags=some(odd, rng.choice([99, 101])),
            all_tags=some(odd, 20),
            none_tags=some(odd, 20),
            allowed_item_ids=some([*odd, *(f"item-{number}" for number in range(100))], rng.choice([50, 10_001])),
        ),
        params=pb.SearchParams(
            exact=rng.random() < 0.2,
            nprobe=rng.choice([0, 0, 1, 2**32 - 1]),
            score_threshold=rng.choice([None, -1.0, 0.5, 1e30, float("nan"), float("-inf")]),
        ),
        exclude_seen=rng.random() < 0.5,
    )
    if rng.random() < 0.5:
        prefix = rng.choice(odd)
        request.diversity.CopyFrom(pb.Diversity(max_per_tag=rng.choice([0, 1, 2, 1000, 2**32 - 1]), tag_prefix=prefix))
    data = bytearray(request.SerializeToString())
    if rng.random() < 0.125:
        for _ in range(rng.choice([1, 5, 50])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def described(folder: Path) -> CatalogueFiles:
    """Write a catalogue of the items: a tag that all have, one that half of them have, and one of many."""
    rows = (
        {"item_id": f"item-{number}", "tags": ["all", f"tag-{number % TAGS}", *["half"][: number % 2]]}
        for number in range(ITEMS)
    )
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CatalogueFiles(str(folder / "items.jsonl"))
