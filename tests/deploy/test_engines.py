""""""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.engines import flink
from deploy.engines.__main__ import services
from deploy.engines.fetch import FetchError, fetch, is_fetched
from deploy.engines.processes import EngineError, Service, start, stop
from deploy.engines.settings import EngineSettings
from deploy.monitoring.producer import Producer
from weir.contracts import Store
from weir.up.ports import free_port


@pytest.fixture(scope="module")
def producer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Producer]:
    thread = Producer(Store(str(tmp_path_factory.mktemp("log"))), rate=600)
    thread.start()
    yield thread
    thread.stopped.set()
    thread.join()


def segments(producer: Producer) -> list[Path]:
    return sorted(Path(producer.folder.path("")).glob("*.jsonl"))


def next_segments(producer: Producer, count: int = 2) -> list[list[str]]:
    """Return the lines of the next segments but one: the first may have been started before."""
    before = len(segments(producer))
    end = time.monotonic() + 60
    while len(segments(producer)) < before + 1 + count:
        assert time.monotonic() < end
        time.sleep(0.1)
    return [path.read_text().splitlines() for path in segments(producer)[before + 1 :]]


def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_events_happen_now(producer: Producer) -> None:
    now = 1000 * time.time()
    for lines in next_segments(producer):
        assert len(lines) == 300
        assert all(0 <= event["timestamp"] - now < 60_000 for event in events(lines))


def test_a_stuck_clock_repeats_one_time(producer: Producer) -> None:
    producer.stuck.set()
    times = {event["timestamp"] for lines in next_segments(producer) for event in events(lines)}
    producer.stuck.clear()
    assert len(times) == 1


def test_a_third_of_the_lines_is_broken(producer: Producer) -> None:
    producer.broken.set()
    lines = [line for found in next_segments(producer) for line in found]
    producer.broken.clear()
    assert 0.2 < sum(not line.endswith("}") for line in lines) / len(lines) < 0.5


def test_misjoined_events_keep_users_and_items_but_not_their_pairs(producer: Producer) -> None:
    def repeats(lines: list[str]) -> float:
        """Return how often an event's user plays something of the same genre as the user's event before."""
        last: dict[str, str] = {}
        same = []
        for event in events(lines):
            genre = event["item_id"].split("-")[0]
            if event["user_id"] in last:
                same.append(last[event["user_id"]] == genre)
            last[event["user_id"]] = genre
        return sum(same) / max(len(same), 1)

    def mean(found: list[list[str]]) -> float:
        return repeats([line for lines in found for line in lines])

    good = mean(next_segments(producer, 6))
    producer.misjoined.set()
    bad = mean(next_segments(producer, 6))
    producer.misjoined.clear()
    assert good > 2 * bad


def test_silence_is_silent(producer: Producer) -> None:
    producer.silent.set()
    time.sleep(1)
    before = len(segments(producer))
    time.sleep(1.5)
    assert len(segments(producer)) == before
    producer.silent.clear()


SLEEP = ("sleep", "1000")


def service(folder: Path, name: str = "sleeper", command: tuple[str, ...] = SLEEP, **more: object) -> Service:
    given = {"ports": {}, "answers": lambda: True} | more
    return Service(name, folder, command, **given)  # type: ignore[arg-type]


@contextmanager
def stopped(*wanted: Service) -> Iterator[None]:
    try:
        yield
    finally:
        stop(wanted, grace=1)


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["start", "stop", "kill one", "kill its leader"]), max_size=6))
def test_any_order_of_starts_stops_and_deaths_leaves_what_the_last_one_said(orders: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        family = service(Path(name), "family", ("sh", "-c", "sleep 1000 & sleep 1000 & wait"))
        pair, alive = [service(Path(name)), family], set[str]()
        with stopped(*pair):
            for order in orders:
                if order == "start":
                    assert {one.name for one in start(pair, 10)} == {"sleeper", "family"} - alive
                    alive = {"sleeper", "family"}
                elif order == "stop":
                    stop(pair)
                    alive = set()
                    assert [one.processes() for one in pair] == [[], []]
                else:
                    victim = pair[order != "kill one"]
                    for pid in victim.processes()[:1]:
                        os.kill(pid, signal.SIGKILL)
                        await_end(pid)
                    alive -= {victim.name}
                assert {one.name for one in pair if one.runs()} == alive


def await_end(pid: int) -> None:
    while Path(f"/proc/{pid}/environ").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)


def test_a_start_ends_what_a_dead_process_has_left(tmp_path: Path) -> None:
    one = service(tmp_path, command=("sh", "-c", "sleep 1000 & sleep 1000"))
    with stopped(one):
        start([one], 10)
        while len(one.processes()) < 3:
            time.sleep(0.01)
        leader, *orphans = one.processes()
        os.kill(leader, signal.SIGKILL)
        await_end(leader)
        assert not one.runs()
        assert one.processes() == orphans
        start([one], 10)
        assert not set(orphans) & set(one.processes())


def test_a_taken_port_is_named_with_the_setting_that_moves_it_and_nothing_stays(tmp_path: Path) -> None:
    first = service(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        second = service(tmp_path, "second", ports={port: "ENGINES_SECOND_PORT"})
        with stopped(first, second), pytest.raises(EngineError, match=f"port {port} .*ENGINES_SECOND_PORT"):
            start([first, second], 10)
    assert first.processes() == second.processes() == []


def test_what_is_running_keeps_its_port_and_its_processes(tmp_path: Path) -> None:
    port = free_port()
    listens = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1000)"
    one = service(tmp_path, command=(sys.executable, "-c", listens), ports={port: "ENGINES_PORT"})
    with stopped(one):
        assert start([one], 10) == [one]
        pids = one.processes()
        assert start([one], 10) == []
        assert one.processes() == pids


def test_an_engine_that_ends_is_shown_with_its_log(tmp_path: Path) -> None:
    one = service(tmp_path, command=("sh", "-c", "echo no memory; exit 3"), answers=lambda: False)
    with pytest.raises(EngineError, match="sleeper has ended") as error:
        start([one], 10)
    assert str(tmp_path / "sleeper.log") in str(error.value)
    assert "no memory" in str(error.value)


def test_an_engine_that_never_answers_is_stopped_and_shown(tmp_path: Path) -> None:
    other, one = service(tmp_path, "other"), service(tmp_path, answers=lambda: False)
    with pytest.raises(EngineError, match=r"sleeper does not answer after 0 s: .*sleeper\.log"):
        start([other, one], 0.4)
    assert other.processes() == one.processes() == []


def test_who_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    one = service(tmp_path, command=("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 1; done"))
    start([one], 10)
    while "ready" not in one.log.read_text():
        time.sleep(0.01)
    assert stop([one], grace=0.3) == [one]
    assert one.processes() == []


def test_services_of_other_folders_are_left_alone(tmp_path: Path) -> None:
    here, there = service(tmp_path / "here"), service(tmp_path / "there")
    with stopped(here, there):
        start([here, there], 10)
        assert stop([here]) == [here]
        assert there.runs()


def test_settings_come_from_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINES_KAFKA_PORT", "29092")
    monkeypatch.setenv("ENGINES_FLINK_VERSION", "1.20.2")
    monkeypatch.setenv("ENGINES_TOOLS", str(tmp_path))
    found = EngineSettings()
    assert (found.kafka_port, found.flink_line, found.flink_jars) == (29092, "1.20", tmp_path / "flink-1.20.2")
    assert not is_fetched(found)


def test_without_java_nothing_is_fetched_and_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="no java and no mvn"):
        fetch(EngineSettings(tools=tmp_path), print)


def test_every_port_is_one_service_and_names_a_setting_that_exists(tmp_path: Path) -> None:
    found = EngineSettings(folder=tmp_path)
    ports = [(port, setting) for one in services(found) for port, setting in one.ports.items()]
    assert len({port for port, _ in ports}) == len(ports)
    for port, setting in ports:
        assert getattr(found, setting.removeprefix("ENGINES_").lower()) == port


def test_flink_listens_on_this_machine_only_and_its_memory_fits_its_java_machine(tmp_path: Path) -> None:
    found = EngineSettings(folder=tmp_path)
    manager = flink.task_manager(found)
    manager.prepare()
    options = yaml.safe_load((tmp_path / "flink/config.yaml").read_text())
    assert {value for key, value in options.items() if key.endswith(("bind-host", "bind-address"))} == {"127.0.0.1"}
    sizes = {
        key.removeprefix("taskmanager.memory."): int(value.split()[0])
        for key, value in options.items()
        if key.startswith("taskmanager.memory.")
    }
    java = " ".join(manager.command)
    assert f"-Xmx{sizes['framework.heap.size'] + sizes['task.heap.size']}m" in java
    direct = sizes["framework.off-heap.size"] + sizes["task.off-heap.size"] + sizes["network.max"]
    assert f"-XX:MaxDirectMemorySize={direct}m" in java
    assert f"-XX:MaxMetaspaceSize={sizes['jvm-metaspace.size']}m" in java
