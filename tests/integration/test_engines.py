"""`python -m deploy.engines` as people call it, with all engines."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from deploy.engines.__main__ import services
from deploy.engines.settings import HOST, ROOT, EngineSettings
from tests.integration.flink_cluster import moved
from weir.runtime.listening import is_held


def engines(settings: EngineSettings, command: str) -> "subprocess.CompletedProcess[str]":
    given = {f"ENGINES_{name.upper()}": str(value) for name, value in settings.model_dump().items()}
    words = [sys.executable, "-m", "deploy.engines", command]
    return subprocess.run(words, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, check=False)


def test_all_start_answer_heal_and_stop_with_nothing_left(tmp_path: Path) -> None:
    settings = moved(tmp_path / "engines")
    wanted = services(settings)
    try:
        done = engines(settings, "start")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" started\n") == len(wanted)
        assert engines(settings, "status").returncode == 0
        pids = {one.name: one.processes()[0] for one in wanted}
        os.kill(pids["taskmanager"], signal.SIGKILL)
        assert engines(settings, "status").returncode == 1
        healed = engines(settings, "start")
        assert (healed.stdout.count(" was running\n"), healed.stdout.count(" started\n")) == (len(wanted) - 1, 1)
        assert {one.name for one in wanted if one.processes()[0] != pids[one.name]} == {"taskmanager"}
    finally:
        stopped = engines(settings, "stop")
    assert stopped.stdout.count(" stopped\n") == len(wanted), stopped.stderr
    assert [one.processes() for one in wanted] == [[]] * len(wanted)
    assert not any(is_held("an engine", HOST, port) for one in wanted for port in one.ports)
    assert engines(settings, "stop").stdout == "nothing was running\n"
    status = engines(settings, "status")
    assert (status.returncode, status.stdout.count("does not run")) == (1, len(wanted))


def test_a_taken_port_is_named_and_what_was_started_is_stopped(tmp_path: Path) -> None:
    settings = moved(tmp_path / "engines")
    with socket.create_server(("127.0.0.1", settings.pool_port)):
        done = engines(settings, "start")
    assert done.returncode == 1
    assert f"port {settings.pool_port} is in use by another program" in done.stderr
    assert "ENGINES_POOL_PORT" in done.stderr
    assert [one.processes() for one in services(settings)] == [[]] * 5
