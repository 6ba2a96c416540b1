"""Exposure from a real server to a bundle: lists are kept, clicks come back, windows hold what was passed over."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port
from tests.serving.process import ServerProcess
from weir.contracts import BundleLog, Store, WindowLog, hash_id
from weir.contracts.served_lists import served_files
from weir.serving.client import RetrievalClient, by_user
from weir.trainer.replay import Replay
from weir.trainer.replay import replay_bundle as replayed

START = 1_700_000_000
PATIENT = 120
SETTINGS: dict[str, Any] = {
    "pipeline": {
        "window_seconds": 100, "allowed_lateness_seconds": 0, "user_shards": 2, "history_length": 5,
        "exposed_items": 4, "metrics_port": 0,
    },
    "trainer": {
        "device": "cpu", "batch_size": 16, "tower": {"dimension": 8, "history_length": 5},
        "negatives": {"uniform": 8, "exposed": 3}, "gate_tolerance": 1.0, "metrics_port": 0,
    },
}  # fmt: skip


def weir(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "weir", *arguments, "--config", str(folder / "weir.yaml"), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def replay_bundle(store: Store, version: str) -> Replay:
    found = replayed(store, version)
    assert found is not None
    return found


def write(folder: Path, name: str, events: list[dict[str, Any]]) -> None:
    (folder / "log").mkdir(exist_ok=True)
    (folder / "log" / name).write_text("".join(json.dumps(event) + "\n" for event in events))


def play(user: int, item: str, second: int, **more: str) -> dict[str, Any]:
    return {"user_id": f"user-{user}", "item_id": item, "timestamp": START + second, **more}


def test_what_a_server_showed_and_nobody_chose_becomes_a_negative(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    pipeline = SETTINGS["pipeline"] | {"log": str(tmp_path / "log")}
    (tmp_path / "weir.yaml").write_text(yaml.safe_dump(SETTINGS | {"store": store.url, "pipeline": pipeline}))
    write(tmp_path, "0.jsonl", [play(row % 20, f"item-{(3 * row + row // 20) % 40}", row // 3) for row in range(300)])
    weir(tmp_path, "ingest")
    weir(tmp_path, "train")
    first = BundleLog(store).current()
    port = free_port()
    with ServerProcess(store, port=port, served={"share": 1, "flush_seconds": 0.1}) as server:
        server.serving(first, PATIENT)
        with RetrievalClient(f"127.0.0.1:{port}", 60) as client:
            answers = [client.retrieve([by_user(f"user-{user}", 6)]) for user in range(20)]
        ends = time.monotonic() + PATIENT
        while sum(file.rows for file in served_files(store)) < len(answers):
            assert time.monotonic() < ends, server.lines
            time.sleep(0.05)
        server.terminate(PATIENT)
    shown = [list(answer.hits[0].item_ids) for answer in answers]
    tokens = [answer.attribution_token for answer in answers]
    clicks = [play(user, shown[user][3], 110 + user, attribution_token=tokens[user]) for user in range(20)]
    lost = play(0, "item-1", 140, attribution_token=tokens[0].rpartition("-")[0] + "-" + "0" * 16)
    write(tmp_path, "1.jsonl", [*clicks, lost, play(1, "item-2", 250)])
    weir(tmp_path, "ingest")
    (window,) = (one for one in WindowLog(store) if one.start_ms == 1000 * (START + 100) and one.exposure.joined)
    assert window.exposure.model_dump(include={"joined", "unknown_list", "items"}) == {
        "joined": 20, "unknown_list": 1, "items": 80,
    }  # fmt: skip
    rows = {row["timestamp"]: row for row in WindowLog(store).all_examples(window).to_pylist()}
    for user, items in enumerate(shown):
        passed_over = [items[place] for place in (2, 1, 0, 4)]
        assert rows[1000 * (START + 110 + user)]["exposed"] == [hash_id(item) for item in passed_over]
    # What served it may go: training reads the windows alone, and makes the same bundle again.
    store.remove("served")
    bundle = weir(tmp_path, "train")["bundle"]
    assert replay_bundle(store, bundle).differences == ()
    # From the same windows without exposure comes another model.
    manifest = BundleLog(store).manifest(bundle)
    assert manifest.recipe is not None
    negatives = manifest.recipe.settings["negatives"] | {"exposed": 0}
    recipe = manifest.recipe.model_copy(update={"settings": manifest.recipe.settings | {"negatives": negatives}})
    BundleLog(store).commit(manifest.model_copy(update={"recipe": recipe}))
    assert replay_bundle(store, bundle).differences
