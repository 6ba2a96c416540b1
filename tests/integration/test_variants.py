"""Two bundles on one stream by the command line alone: trained, served, compared, and exchanged under load."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from weir.cli.inspect.bundles import variant_facts
from weir.contracts import Store, hash_id
from weir.contracts.bundles.variants import Champion, Comparison, challenges, log_of
from weir.contracts.verification import verify
from weir.demo.generator import GeneratorConfig, generate
from weir.serving.client import RetrievalClient, RetrievalError, by_user

ROOT = Path(__file__).parents[2]
USERS = 120
PATIENT = 180.0
"""Seconds that anything may take on a busy machine."""


@dataclass
class Shop:
    """A store, its settings file and the log that it reads, of which only the first half is there at first."""

    folder: Path
    port: int
    scraped: int
    later: bytes

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    def weir(self, *arguments: str) -> Any:
        """Run a command to its end and return what it prints as JSON."""
        done = subprocess.run(self._command(*arguments, "--json"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a stage until the end of the block."""
        with (self.folder / f"{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(self._command(*arguments), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENT) == 0, (self.folder / f"{arguments[0]}.log").read_text()

    def _command(self, *arguments: str) -> list[str]:
        os.environ["OMP_NUM_THREADS"] = "1"
        return [sys.executable, "-m", "weir", *arguments, "--config", str(self.folder / "weir.yaml")]


def until(reached: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENT
    while not reached():
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.05)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """The plain settings hardly learn; those of the variant do."""
    lines = generate(GeneratorConfig(users=USERS, items=150, events=8000, days=8)).lines.splitlines(keepends=True)
    (tmp_path / "log").mkdir()
    half = len(lines) // 2
    (tmp_path / "log/0.jsonl").write_bytes(b"".join(lines[:half]))
    port, scraped = free_port(), free_port()
    trainer = {
        "metrics_port": 0,
        "batch_size": 64,
        "tower": {"dimension": 16, "history_length": 10, "heads": 1, "kind": "mean_pooling"},
        "negatives": {"uniform": 32},
        "optimizer": {"embedding_learning_rate": 1e-4},
        "variants": {"keen": {"optimizer": {"embedding_learning_rate": 0.1}}},
        "promote_by": "recall",
    }
    settings = {
        "store": str(tmp_path / "store"),
        "pipeline": {
            "log": str(tmp_path / "log"),
            "metrics_port": 0,
            "history_length": 10,
            "window_seconds": 6 * 3600,
            "event_types": {"play": "positive", "skip": "negative"},
        },
        "trainer": trainer,
        "serving": {
            "port": port,
            "http_port": 0,
            "metrics_port": 0,
            "poll_seconds": 0.05,
            "served": {"share": 1, "flush_seconds": 0.2},
        },
        "monitor": {
            "target": f"127.0.0.1:{port}",
            "metrics_port": scraped,
            "k": [10, 20],
            "poll_seconds": 0.05,
            "served_delay_seconds": 1,
            "compare_seconds": 2,
        },
    }
    (tmp_path / "weir.yaml").write_text(json.dumps(settings))
    return Shop(tmp_path, port, scraped, b"".join(lines[half:]))


@dataclass
class Load:
    """Asks for one user after another until told to stop; notes who was answered from where, and what failed."""

    target: str
    done: threading.Event = field(default_factory=threading.Event)
    lines: dict[str, Counter[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        with RetrievalClient(self.target) as client:
            number = 0
            while not self.done.is_set():
                user = f"user-{number % USERS}"
                number += 1
                try:
                    answer = client.retrieve([by_user(user, 5)])
                except RetrievalError as error:
                    self.failed.append(str(error))
                    continue
                line = answer.bundle_version.partition("--")[2] or "main"
                self.lines.setdefault(user, Counter())[line] += 1


@contextmanager
def loaded(target: str) -> Iterator[Load]:
    load = Load(target)
    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield load
    finally:
        load.done.set()
        thread.join()


@pytest.mark.timeout(900)
def test_the_better_of_two_lines_comes_to_all_users_without_a_failed_call(shop: Shop) -> None:
    store, target = shop.store, f"127.0.0.1:{shop.port}"
    windows = shop.weir("ingest")["windows"]
    for variant in ((), ("--variant", "keen")):
        assert shop.weir("train", *variant)["windows"] == windows
    assert variant_facts(store, ["keen"])["challenger"] == "keen"
    with ExitStack() as stack:
        stack.enter_context(shop.running("serve"))
        client = stack.enter_context(RetrievalClient(target))
        until(lambda: len(_lines_of(client)) == 2)
        assert _lines_of(client) == ("main", "keen")
        stack.enter_context(shop.running("monitor"))
        load = stack.enter_context(loaded(target))
        until(lambda: len(load.lines) == USERS)
        for user, lines in load.lines.items():
            assert set(lines) == {"keen" if challenges(hash_id(user), "keen", 0.5) else "main"}, user
        _both_can_be_pinned(client)

        (shop.folder / "log/1.jsonl").write_bytes(shop.later)
        shop.weir("ingest")
        until(lambda: _word(store) == "better")
        until(lambda: (found := Comparison.read(store, "keen")) and min(len(found.clicks), 2) == 2)
        until(lambda: _shown() <= _told(shop))
        assert not store.exists("variants/CHAMPION.json"), "nobody but its trainer promotes it"
        facts = variant_facts(store, ["keen"])["comparison"]["measures"]
        assert [one["verdict"] for one in facts if one["measure"] == "recall"] == ["better"]

        shop.weir("train", "--variant", "keen")
        assert Champion.read(store).variant == "keen"
        until(lambda: _lines_of(client) == ("keen",))
        load.lines.clear()
        until(lambda: len(load.lines) == USERS)
        # A call may have been on its way while the roles changed.
        assert sum(lines["main"] for lines in load.lines.values()) <= 1
        newest = log_of(store, "keen").current()
        until(lambda: client.info().bundle_version == newest)
        assert load.failed == []
    facts = shop.weir("inspect", "variants")
    assert (facts["champion"], facts["challenger"]) == ("keen", None)
    assert facts["promotion"]["by"] == "the trainer"
    assert facts["promotion"]["verdict"].startswith("better: recall@20 as served of keen is ")
    assert {one["variant"] for one in shop.weir("inspect", "served")["variants"]} == {"main", "keen"}
    assert verify(store).findings == []


def _shown() -> set[str]:
    """Return the metrics of variants that the dashboards ask for."""
    board = (ROOT / "deploy/monitoring/dashboards/learning.json").read_text()
    return set(re.findall(r"weir_(?:attribution_)?variant_\w+", board))


def _told(shop: Shop) -> set[str]:
    """Return the metrics of which the monitor has a series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{shop.scraped}/metrics", timeout=10) as answer:
        return {re.split(r"[{ ]", line)[0] for line in answer.read().decode().splitlines() if line[0] != "#"}


def _lines_of(client: RetrievalClient) -> tuple[str, ...]:
    try:
        return tuple(line for line, _ in client.info(timeout=5).loaded)
    except RetrievalError:
        return ()


def _both_can_be_pinned(client: RetrievalClient) -> None:
    versions = [version for _, version in client.info().loaded]
    for version in versions:
        answers = [client.retrieve([by_user(f"user-{n}", 5)], bundle_version=version, probe=True) for n in range(10)]
        assert {answer.bundle_version for answer in answers} == {version}
    with pytest.raises(RetrievalError, match="is not loaded"):
        client.retrieve([by_user("user-1", 5)], bundle_version="v0--keen")


def _word(store: Store) -> str:
    found = Comparison.read(store, "keen")
    return found.measured("recall").word if found else ""
