"""A real S3 server on loopback: MinIO, built by `make tools` where there is Go."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec.config
import pytest

from tests.ports import free_port

BINARY = Path(__file__).parents[2] / ".venv/tools/minio"
USER, PASSWORD = "someone", "something-long"


@contextmanager
def bucket(folder: Path) -> Iterator[str]:
    """Run a server that this process and those that it starts find; yields the URL of a bucket."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'weir-retrieval[s3]'")
    with pytest.MonkeyPatch.context() as patch, minio(folder) as environment:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.config.set_conf_env(fsspec.config.conf)
        try:
            yield "s3://bucket"
        finally:
            fsspec.config.conf.pop("s3", None)


@contextmanager
def minio(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server; yields the environment in which fsspec finds it."""
    binary = shutil.which("minio") or (str(BINARY) if BINARY.exists() else None)
    if binary is None:
        pytest.skip("no MinIO: `make tools` builds it where there is Go")
    address = f"127.0.0.1:{free_port()}"
    (folder / "bucket").mkdir(parents=True)
    environment = os.environ | {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "MINIO_UPDATE": "off"}
    with (folder.parent / "minio.log").open("w") as log:
        command = [binary, "server", "--quiet", "--address", address, str(folder)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_for(address, process)
        yield {
            "FSSPEC_S3_ENDPOINT_URL": f"http://{address}",
            "FSSPEC_S3_KEY": USER,
            "FSSPEC_S3_SECRET": PASSWORD,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    for _ in range(600):
        assert process.poll() is None, "MinIO has ended"
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("MinIO does not answer")
