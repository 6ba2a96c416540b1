""""""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.serving.histories.redis_server import RedisServer
from tests.serving.support import write_window
from tests.serving.users import Event
from tests.weir.cli.interactions import refused
from tests.weir.cli.interactions import weir as weir_in
from weir.cli.main import app
from weir.contracts import BundleLog, FeatureNames, Store
from weir.demo.generator import GeneratorConfig, generate
from weir.serving import server as serving_server
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import RetrievalClient, RetrievalError

SMALL = {
    "pipeline": {"metrics_port": 0, "history_length": 5, "event_types": {"play": "positive", "skip": "negative"}},
    "trainer": {
        "metrics_port": 0,
        "batch_size": 32,
        "evaluation_k": [5, 20],
        "tower": {"dimension": 8, "history_length": 5, "heads": 1, "kind": "mean_pooling"},
        "negatives": {"uniform": 8},
    },
    "serving": {"port": 0, "metrics_port": 0},
    "monitor": {"metrics_port": 0},
}


def weir(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weir", *arguments, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the settings of a store that one ingestion and one training by two ranks have filled."""
    folder = tmp_path_factory.mktemp("stages")
    made = generate(GeneratorConfig(users=30, items=40, events=800, days=3))
    (folder / "log.jsonl").write_bytes(made.lines)
    pipeline = {**SMALL["pipeline"], "log": str(folder / "log.jsonl")}
    file = folder / "weir.yaml"
    file.write_text(json.dumps({**SMALL, "pipeline": pipeline, "store": str(folder / "store")}))
    ingested = weir(file, "ingest", "--json")
    assert ingested.returncode == 0, ingested.stderr
    assert json.loads(ingested.stdout)["valid"] == made.truth.events
    trained = weir(file, "train", "--ranks", "2", "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["windows"] == 3
    return file


@pytest.fixture
def server(config: Path, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server in a process of its own, and see it end well."""
    log = tmp_path / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", "weir", "serve", "--config", str(config)], stderr=output)
    try:
        deadline = time.monotonic() + 60
        while "gRPC on 127.0.0.1:" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"127.0.0.1:{log.read_text().split('gRPC on 127.0.0.1:')[1].split(',')[0]}"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def wait_for_bundle(target: str) -> None:
    deadline = time.monotonic() + 60
    with RetrievalClient(target) as client:
        while True:
            try:
                client.info()
            except RetrievalError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return


def test_two_ranks_leave_a_promoted_bundle(config: Path) -> None:
    shown = json.loads(weir(config, "inspect", "bundles", "--json").stdout)
    assert [bundle["current"] for bundle in shown] == [False] * (len(shown) - 1) + [True]
    assert shown[-1]["trained_sequence"] == 2


def test_a_checkpoint_can_be_exported_again(config: Path) -> None:
    exported = weir(config, "export", "--json")
    assert exported.returncode == 0, exported.stderr
    store = Store(json.loads(weir(config, "config", "show", "--json").stdout)["store"])
    assert json.loads(exported.stdout)["version"] in BundleLog(store).versions()


def test_a_bundle_is_made_again_by_as_many_ranks_as_trained_it(config: Path) -> None:
    log = BundleLog(Store(str(config.parent / "store")))
    version = log.versions()[-1]
    found = weir(config, "replay-bundle", version, "--json")
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)
    assert (facts["version"], facts["windows"], facts["differences"]) == (version, 3, [])
    assert facts["items"] == log.manifest(version).items
    shown = weir(config, "replay-bundle", "nobody")
    assert (shown.returncode, "has no bundle nobody" in shown.stderr) == (1, True)


def test_an_older_bundle_can_be_promoted_and_stays(config: Path) -> None:
    bundles = BundleLog(Store(json.loads(weir(config, "config", "show", "--json").stdout)["store"]))
    newest, oldest = bundles.current(), bundles.versions()[0]
    assert newest is not None
    assert newest != oldest
    promoted = weir(config, "promote", oldest, "--why", "the new one repeats itself")
    assert promoted.stdout == f"{oldest} is promoted and pinned until `weir promote --unpin`\n"
    assert bundles.current() == oldest
    refused = weir(config, "promote", "none")
    assert (refused.returncode, bundles.current()) == (1, oldest)
    assert f"holds no bundle none; there are: {oldest}, " in refused.stderr
    # A trainer that is started again exports, and leaves the operator's choice alone.
    assert weir(config, "export").returncode == 0
    assert bundles.current() == oldest
    shown = weir(config, "inspect", "bundles").stdout
    assert f"current: {oldest}\n" in shown
    assert f"pinned to {oldest} by " in shown
    assert "the new one repeats itself; `weir promote --unpin` removes it" in shown
    assert json.loads(weir(config, "inspect", "bundles", "--json").stdout)[0]["standing"] == "pinned"
    assert weir(config, "promote", newest).returncode == 0
    lifted = weir(config, "promote", "--unpin").stdout
    assert lifted.startswith(f"no longer pinned to {newest} by ")
    assert weir(config, "promote", "--unpin").stdout.startswith("nothing was pinned")
    assert (bundles.current(), bundles.pin()) == (newest, None)
    for wrong in ([], [newest, "--unpin"]):
        assert weir(config, "promote", *wrong).returncode == 2


def test_settings_that_contradict_the_checkpoint_are_told_in_a_line(config: Path) -> None:
    refused = weir(config, "train", "--set", "trainer.seed=9")
    assert refused.returncode == 1
    assert "made with other settings: seed was 0 and is now 9" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def test_settings_for_one_rank_are_refused_before_more_start(config: Path) -> None:
    settings = ("--set", "trainer.loss.kind=pointwise", "--set", "trainer.negatives.uniform=0")
    refused = weir(config, "train", "--ranks", "2", *settings)
    assert refused.returncode == 1
    assert refused.stderr.startswith("weir: loss.kind = pointwise is a loss of the whole batch: train it with one rank")
    assert "restarts" not in refused.stderr


def test_a_rank_that_fails_is_told_with_its_own_reason(config: Path) -> None:
    refused = weir(config, "train", "--ranks", "2", "--restarts", "0", "--set", "trainer.batch_size=33")
    assert refused.returncode == 1
    assert "batch_size" in refused.stderr
    assert "ended with status 1" in refused.stderr.splitlines()[-1]


def test_query_shows_ranks_age_and_milliseconds(config: Path, server: str) -> None:
    wait_for_bundle(server)
    answer = json.loads(weir(config, "query", "anna-0", "-k", "4", "--target", server, "--json").stdout)
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3, 4]
    assert all(hit["popularity_rank"] >= 1 for hit in answer["hits"])
    assert not answer["fallback"]
    assert set(answer["server_milliseconds"]) == {"total", "queue", "tower", "search"}
    text = weir(config, "query", "nobody", "--target", server).stdout
    assert "nobody is unknown so far: these are the popular items" in text
    assert f"bundle {answer['bundle_version']}" in text


def test_a_request_that_the_server_refuses_lists_its_problems(config: Path, server: str) -> None:
    wait_for_bundle(server)
    refused = weir(config, "query", "", "--target", server)
    assert refused.returncode == 1
    assert "weir: the server refused: INVALID_ARGUMENT (INVALID_REQUEST)" in refused.stderr
    assert "queries[0]" in refused.stderr


def test_training_on_an_empty_store_says_what_comes_first(config: Path, tmp_path: Path) -> None:
    trained = weir(config, "train", "--store", str(tmp_path / "empty"))
    assert trained.returncode == 0
    assert "holds no window to train on: `weir ingest` commits them" in trained.stderr


def test_the_server_reads_the_features_of_items_that_the_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[CatalogueFiles, tuple[str, ...]]] = []
    monkeypatch.setattr(serving_server, "serve", lambda _, __, files, variants: served.append((files, variants)))
    names = 'pipeline.item_features={"categorical": ["genre"], "dense": ["price"]}'
    arguments = ["serve", "--store", str(tmp_path), "--set", "catalogue=items.csv", "--set", names]
    arguments += ["--set", "trainer.variants.new.seed=1", "--set", "pipeline.missing_ids=[NA]"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    files = CatalogueFiles("items.csv", None, FeatureNames(categorical=("genre",), dense=("price",)), ("NA",))
    assert served == [(files, ("new",))]


def test_users_are_in_redis_after_one_run_and_a_second_writer_or_none_is_told(tmp_path: Path) -> None:
    (folder := tmp_path / "redis").mkdir()
    store = Store(str(tmp_path / "store"))
    write_window(store, 0, [Event("ann", "a", 1_700_000_000_000)])
    server = RedisServer(folder)
    try:
        command = ["histories", "--store", store.url, "--redis", server.url]
        result = weir_in(*command)
        assert result.exit_code == 0, result.output
        assert len(server.client.keys("weir:u:*")) == 1
        server.client.set("weir:histories:writer", "another")
        assert "another follower writes to Redis" in refused(weir_in(*command), 1)
    finally:
        server.stop()
    assert f"Redis at {server.url}: Error" in refused(weir_in(*command), 1)
    assert "must be redis://HOST" in refused(weir_in("histories", "--store", store.url, "--redis", "cache:6379"), 1)
