import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from tests.contracts.bundles.test_bundle_log import write
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.cli.main import app
from weir.contracts import BundleLog, EventClock, Store
from weir.interact import append_event
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.readers import LogColumns

CLOCK = EventClock(event_origin=1_000_000_000, wall_origin=1_000_000_000, speed=1, event_end=1_000_000_000)


@pytest.mark.parametrize(
    ("unit", "kind", "length"),
    [("auto", int, 13), ("ms", int, 13), ("s", int, 10), ("us", int, 16), ("ns", int, 19), ("rfc3339", str, 29)],
)
def test_an_event_is_written_as_the_log_spells_it(tmp_path: Path, unit: str, kind: type, length: int) -> None:
    log = tmp_path / "log"
    log.mkdir()
    names = LogColumns(user_id="who", item_id="what", timestamp="when", event_type="how", attribution_token="why")  # noqa: S106
    pipeline = PipelineConfig.model_validate(
        {
            "log": str(log),
            "columns": names,
            "timestamp_unit": unit,
            "event_types": {"skip": "negative", "play": "positive"},
        }
    )
    event = append_event(Store(str(tmp_path)), pipeline, "anna-1", "jazz é", "v1/0123")
    record = json.loads(Path(event.segment).read_text())
    assert (record["who"], record["what"], record["how"], record["why"]) == ("anna-1", "jazz é", "play", "v1/0123")
    assert isinstance(record["when"], kind)
    assert len(str(record["when"])) == length


def test_the_pipeline_commits_it_at_the_stores_event_time(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    CLOCK.save(store)
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    event = append_event(store, pipeline, "anna-1", "jazz-1")
    assert event.event_ms == pytest.approx(CLOCK.event_ms(), abs=5000)
    assert ingest(store, pipeline, registry=CollectorRegistry()).valid == 1


def test_a_log_that_is_a_file_cannot_take_a_segment(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"log\.jsonl is not a folder"):
        append_event(Store(str(tmp_path)), PipelineConfig(log=str(tmp_path / "log.jsonl")), "u", "i")


def test_a_topic_cannot_take_a_segment(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kafka://broker:9092/clicks is a topic: produce the event to it"):
        append_event(Store(str(tmp_path)), PipelineConfig(log="kafka://broker:9092/clicks"), "u", "i")


def test_where_no_type_is_positive_a_click_is_refused(tmp_path: Path) -> None:
    pipeline = PipelineConfig.model_validate({"log": str(tmp_path), "event_types": {"skip": "negative"}})
    with pytest.raises(ValueError, match="names no positive type"):
        append_event(Store(str(tmp_path)), pipeline, "u", "i")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server over a bundle with the items item-0, item-1, ..."""
    store = Store(str(tmp_path_factory.mktemp("served")))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store) as process:
        process.serving("v1")
        yield process


def click(served: ServerProcess, store: Store, item: str, timeout: float) -> str:
    """Run the command, and return what it prints."""
    log = Path(store.path("log"))
    log.mkdir(exist_ok=True)
    command = ["click", "ann", item, "--target", served.target, "--store", store.url, "--timeout", str(timeout)]
    found = CliRunner().invoke(app, [*command, "--set", f"pipeline.log={log}"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_a_click_on_an_item_that_is_not_served_waits_for_nothing(served: ServerProcess, tmp_path: Path) -> None:
    """It would wait for a day."""
    store = Store(str(tmp_path))
    shown = click(served, store, "new-item", 86_400)
    assert "the event is in the log; new-item is new: it changes answers once a bundle has it" in shown
    assert "is `weir" not in shown
    assert len(list((tmp_path / "log").iterdir())) == 1


def test_a_click_without_effect_names_the_stage_that_lags(served: ServerProcess, tmp_path: Path) -> None:
    """The server follows another store, so it never takes the event in; first no pipeline commits it either."""
    store = Store(str(tmp_path))
    shown = click(served, store, "item-1", 0.3)
    assert "newest bundle" not in shown
    assert "because the pipeline has not committed it: is `weir ingest --follow` running?" in shown
    config = PipelineConfig(log=store.path("log"), metrics_port=0)
    stop = threading.Event()

    def commit() -> None:
        while not stop.wait(0.05):
            ingest(store, config, registry=CollectorRegistry())

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(commit)
        while "because the server has not taken it in: is `weir serve` running?" not in shown:
            shown = click(served, store, "item-1", 2)
            assert "the answer has not changed in time" in shown
        stop.set()
        following.result()


def test_a_click_ends_with_why_the_newest_bundle_is_held(served: ServerProcess, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log = BundleLog(store)
    write(log, "0001", created_at=1.0, verdict="promoted: the first bundle")
    write(log, "0002", created_at=2.0, promoted=False, verdict="held: recall@20 fell")
    assert click(served, store, "new-item", 1).endswith("newest bundle: held: recall@20 fell\n")
    log.promote("0002")
    assert "newest bundle" not in click(served, store, "new-item", 1)
    log.store.write("bundles/CURRENT", b"\x00")
    assert "newest bundle" not in click(served, store, "new-item", 1)
