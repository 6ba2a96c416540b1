"""A real server with a catalogue: tags, swaps and deltas under load, items taken down, availability over time."""

import gzip
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.serving import deltas
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import RetrievalClient, RetrievalError, by_history

QUERY = [by_history(["item-1", "item-4"], 20)]
GENRES = ("jazz", "blues", "folk")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def genre(item: str) -> str:
    return GENRES[int(item.rpartition("-")[2]) % 3]


def replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def lines(items: list[str], **more: object) -> str:
    rows = [{"item_id": item, "tags": [genre(item), "all"], **more} for item in items if item]
    return "".join(json.dumps(row) + "\n" for row in rows)


def soon(said: Callable[[], bool], within: float = 10) -> None:
    ends = time.monotonic() + within
    while not said():
        assert time.monotonic() < ends, f"not within {within} s"
        time.sleep(0.02)


@pytest.mark.parametrize("processes", [1, 2])
def test_tags_hold_through_swaps_and_deltas_under_load(store: Store, tmp_path: Path, processes: int) -> None:
    """Every answer has the tag that was asked for, and is complete, whatever is promoted meanwhile."""
    catalogue, path = Catalogue.random(items=300), tmp_path / "items.jsonl"
    manifest = write_bundle(store, "v0", catalogue, index="IVF8,SQfp16", parameters={"nprobe": 8})
    replace(path, lines([*catalogue.ids, *(f"new-{n}" for n in range(200))]))
    wrong: list[str] = []
    asked = dict.fromkeys(GENRES, 0)
    stopped = threading.Event()

    def ask(target: str, wanted: str) -> None:
        with RetrievalClient(target) as client:
            while not stopped.is_set():
                try:
                    hits = client.retrieve(QUERY, any_tags=[wanted], all_tags=["all"]).hits[0]
                except RetrievalError as error:
                    wrong.append(str(error))
                    return
                asked[wanted] += 1
                if len(hits.item_ids) != 20 or not hits.complete or {genre(item) for item in hits.item_ids} != {wanted}:
                    wrong.append(f"{wanted}: {hits.item_ids}")

    with ServerProcess(store, CatalogueFiles(str(path)), deltas="in_place", processes=processes) as server:
        server.serving("v0")
        threads = [threading.Thread(target=ask, args=(server.target, name)) for name in GENRES]
        for thread in threads:
            thread.start()
        for number in range(1, 7):
            rows = (number * 7, number * 7 + 1, 300 + number - 1)
            new = {row: f"new-{number * 10 + place}" for place, row in enumerate(rows)}
            change = deltas.Change([number * 3 + 100], new, [number * 9 + 150])
            catalogue = deltas.changed(catalogue, change)
            manifest = deltas.write_delta(store, f"v{number}", manifest, catalogue, change)
            server.serving(f"v{number}")
        write_bundle(store, "whole", deltas.dense(catalogue), index="Flat")
        server.serving("whole")
        BundleLog(store).promote("v2")
        server.serving("v2")
        stopped.set()
        for thread in threads:
            thread.join()
        assert server.metric("weir_bundle_deltas_total", 'how="in_place"') >= 6
        assert server.metric("weir_catalogue_items") == 500
    assert not wrong
    assert min(asked.values()) > 20


@pytest.mark.parametrize("processes", [1, 2])
def test_an_item_taken_down_is_gone_within_a_second_under_load(store: Store, tmp_path: Path, processes: int) -> None:
    catalogue, takedown = Catalogue.random(items=300), tmp_path / "takedown.txt"
    write_bundle(store, "v1", catalogue, index="IVF8,Flat", parameters={"nprobe": 8})
    best = catalogue.top(catalogue.user(["item-1", "item-4"]), 20)
    answers: list[tuple[float, list[str]]] = []
    stopped = threading.Event()

    def ask(target: str) -> None:
        with RetrievalClient(target) as client:
            while not stopped.is_set():
                sent = time.monotonic()
                answers.append((sent, client.retrieve(QUERY).hits[0].item_ids))

    with ServerProcess(store, CatalogueFiles(takedown=str(takedown)), poll_seconds=5, processes=processes) as server:
        server.serving("v1")
        threads = [threading.Thread(target=ask, args=(server.target,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        soon(lambda: len(answers) > 50)
        replace(takedown, f"{best[0]}\n{best[3]}\n")
        taken = time.monotonic()
        soon(lambda: answers[-1][0] > taken + 3)
        with RetrievalClient(server.target) as client:
            assert not client.retrieve(QUERY, allowed_item_ids=[best[0]]).hits[0].item_ids
            assert not client.retrieve(QUERY, allowed_item_ids=[best[0]]).hits[0].complete
        assert server.metric("weir_takedown_items") == 2
        replace(takedown, f"{best[3]}\n")
        soon(lambda: answers[-1][1][0] == best[0])
        stopped.set()
        for thread in threads:
            thread.join()
    with_it = [sent for sent, items in answers if best[0] in items and taken < sent < taken + 3]
    assert max(with_it, default=taken) < taken + 1
    assert all(len(items) == 20 for _, items in answers)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_list_of_takedowns_in_another_format_lifts_none(store: Store, tmp_path: Path, processes: int) -> None:
    catalogue, file = Catalogue.random(items=300), tmp_path / "takedown.txt"
    write_bundle(store, "v1", catalogue)
    down = catalogue.top(catalogue.user(["item-1", "item-4"]), 6)
    file.write_text("".join(f"{item}\n" for item in down))
    with (
        ServerProcess(store, CatalogueFiles(takedown=str(file)), processes=processes) as server,
        RetrievalClient(server.target) as client,
    ):
        server.serving("v1")
        assert set(client.retrieve(QUERY).hits[0].item_ids).isdisjoint(down)
        for made in (
            "".join(f"{item}\r\n" for item in down).encode("utf-16"),
            gzip.compress("\n".join(down).encode()),
            random.Random(7).randbytes(4096),
            "".join(f'"{item}"\n' for item in down).encode(),
            "".join(json.dumps({"item_id": item}) + "\n" for item in down).encode(),
        ):
            looks = "".join(server.lines).count("cannot be understood as a list of ids")
            draft = file.with_suffix(".draft")
            draft.write_bytes(made)
            draft.replace(file)
            soon(lambda n=looks: "".join(server.lines).count("cannot be understood as a list of ids") >= n + processes)
            assert set(client.retrieve(QUERY).hits[0].item_ids).isdisjoint(down)
            soon(lambda: server.metric("weir_catalogue_unusable", 'file="takedown"') >= 1)
        replace(file, f"{down[1]}\n")
        soon(lambda: client.retrieve(QUERY).hits[0].item_ids[0] == down[0])
        soon(lambda: server.metric("weir_catalogue_unusable", 'file="takedown"') == 0)
        assert down[1] not in client.retrieve(QUERY).hits[0].item_ids


def test_without_a_readable_catalogue_tags_are_refused_and_all_else_is_answered(store: Store, tmp_path: Path) -> None:
    catalogue, path = Catalogue.random(items=300), tmp_path / "items.csv"
    write_bundle(store, "v1", catalogue)
    path.write_text("no catalogue")
    with ServerProcess(store, CatalogueFiles(str(path))) as server:
        server.serving("v1")
        with RetrievalClient(server.target) as client:
            with pytest.raises(RetrievalError) as refusal:
                client.retrieve(QUERY, any_tags=["jazz"])
            assert refusal.value.code is grpc.StatusCode.FAILED_PRECONDITION
            assert refusal.value.reason == "NO_CATALOGUE"
            assert len(client.retrieve(QUERY, allowed_item_ids=["item-1", "item-2"]).hits[0].item_ids) == 2
            assert server.metric("weir_catalogue_unusable", 'file="catalogue"') == 1
            now = time.time()
            rows = [f"{item},jazz,,{round((now + 3) * 1000) if item == 'item-9' else ''}" for item in catalogue.ids]
            replace(path, "\n".join(["item_id,tags,available_from,available_until", *rows]))
            soon(lambda: server.metric("weir_catalogue_items") == 300)

            def allowed() -> list[str]:
                return (
                    client.retrieve(QUERY, any_tags=["jazz"], allowed_item_ids=["item-9", "item-10"]).hits[0].item_ids
                )

            soon(lambda: "item-9" not in allowed())
            assert time.time() >= now + 2.9
            unknown = client.retrieve(QUERY, any_tags=["polka"]).hits[0]
            assert unknown.item_ids == []
            assert not unknown.complete
            with pytest.raises(RetrievalError) as refusal:
                client.retrieve(QUERY, any_tags=["jazz"] * (client.info().limits["max_filter_tags"] + 1))
            assert list(refusal.value.violations) == ["filter.any_tags"]


def test_the_command_line_asks_by_tags(store: Store, tmp_path: Path) -> None:
    catalogue, path = Catalogue.random(items=300), tmp_path / "items.jsonl"
    write_bundle(store, "v1", catalogue)
    rows = [{"item_id": item, "tags": [genre(item), f"label-{int(item[5:]) % 9}"]} for item in catalogue.ids]
    replace(path, "".join(json.dumps(row) + "\n" for row in rows))
    with ServerProcess(store, CatalogueFiles(str(path))) as server:
        server.serving("v1")

        def ask(*options: str) -> list[str]:
            command = [sys.executable, "-m", "weir", "query", "anna", "--target", server.target, "--store", store.url]
            done = subprocess.run([*command, "-k", "9", "--json", *options], capture_output=True, check=True, text=True)
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer

        jazz = ask("--tag", "jazz")
        assert {genre(hit["item_id"]) for hit in jazz["hits"]} == {"jazz"}
        assert jazz["complete"]
        assert {genre(hit["item_id"]) for hit in ask("--any-tag", "jazz", "--any-tag", "folk")["hits"]} <= {
            "jazz",
            "folk",
        }
        assert {genre(hit["item_id"]) for hit in ask("--none-tag", "jazz", "--none-tag", "blues")["hits"]} == {"folk"}
        spread = [genre(hit["item_id"]) for hit in ask("--max-per-tag", "2")["hits"]]
        assert {name: spread.count(name) for name in GENRES} == dict.fromkeys(GENRES, 2)
