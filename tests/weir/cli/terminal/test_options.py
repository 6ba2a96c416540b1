"""Commands that read a finished log, on a topic of a real broker: they say what they say of the same rows in files."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.integration.kafka_broker import Broker
from tests.pipelines.sources.kafka.support import new_topic
from tests.weir.cli.interactions import TINY, told, weir
from weir.cli import settings as check
from weir.demo.generator import GeneratorConfig, generate


@dataclass(frozen=True)
class Logs:
    """The same rows twice."""

    topic: str
    files: Path


@pytest.fixture
def logs(broker: Broker, tmp_path: Path) -> Logs:
    """A small generated log with its dead letters and duplicates, in two partitions."""
    lines = generate(GeneratorConfig(events=3000, users=60, items=100, days=10)).lines.splitlines()
    name, files = new_topic(broker, 2), tmp_path / "log"
    files.mkdir()
    for number in range(2):
        part = lines[number::2]
        broker.send(name, list(part), number)
        (files / f"{number}.jsonl").write_bytes(b"\n".join(part) + b"\n")
    return Logs(broker.url(name), files)


def test_check_and_init_look_at_the_messages_as_at_lines(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    by_topic, by_files = (told(weir("check", log, "--json")) for log in (logs.topic, logs.files))
    assert by_topic.pop("log") == logs.topic
    assert by_files.pop("log") == str(logs.files)
    # A live log has windows by how old an answer may be, a finished one by its span.
    assert (by_topic.pop("window_seconds"), by_files.pop("window_seconds")) == (10, 21_600)
    assert by_topic == by_files
    assert yaml.safe_load(weir("init", logs.topic).stdout)["pipeline"]["log"] == logs.topic
    monkeypatch.setattr(check, "_NEWEST", 200)
    some = told(weir("check", logs.topic, "--json"))
    assert (some["rows"], some["is_complete"], some["all_rows"]) == (200, False, None)
    assert "200 looked at, the newest ones" in weir("check", logs.topic).stdout


def test_evaluate_reads_a_topic_to_the_end_that_it_has(logs: Logs) -> None:
    options = ("--steps", "20", "--set", 'pipeline.event_types={"play":"positive","skip":"negative"}', *TINY, "--json")
    by_topic, by_files = (told(weir("evaluate", "--log", log, *options)) for log in (logs.topic, logs.files))
    for name in ("cases", "popularity", "model"):
        assert by_topic[name] == by_files[name]
