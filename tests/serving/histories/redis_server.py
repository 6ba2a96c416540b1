"""A real Redis (or Valkey) server on loopback, where one is installed."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import redis

from tests.ports import free_port

__all__ = ["RedisServer"]


class RedisServer:
    """A server that can be stopped, started again on its port, and made to hang."""

    def __init__(self, folder: Path, *options: str) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            pytest.skip("no Redis: `make tools` installs it, or apt install redis-server")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *options
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            assert self._process.poll() is None, "Redis has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("Redis does not answer")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def hang(self, *, on: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)
