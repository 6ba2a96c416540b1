"""`weir up` with mutual TLS and tokens: every stage reaches the server, and so does `weir query`."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer

PORTS = ("serving.port", "serving.http_port", *(f"{each}.metrics_port" for each in ("pipeline", "trainer", "serving")))


def weir(*arguments: str, within: float) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "weir", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)


def lines(count: int) -> Iterator[str]:
    """Events of users who stay with one of eight kinds of items: easy to learn, and not by popularity."""
    draw = random.Random(0)
    for number in range(count):
        user = draw.randrange(80)
        event = {"user_id": f"u{user}", "item_id": f"i{50 * (user % 8) + draw.randrange(50)}"}
        yield json.dumps(event | {"timestamp": 1_700_000_000 + number}) + "\n"


@pytest.mark.timeout(600)
def test_the_whole_path_runs_with_tls_and_tokens(tmp_path: Path) -> None:
    authority, issuer, token = Authority(tmp_path), Issuer(), tmp_path / "token"
    token.write_text(issuer.token(sub="weir"))
    log = tmp_path / "log.jsonl"
    log.write_text("".join(lines(2000)))
    settings = {
        "serving": {
            "tls": {**authority.files("server"), "client_ca_file": str(authority.file)},
            "auth": {
                "jwks": issuer.publish(tmp_path / "jwks.json"),
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "allow": [{"subjects": ["weir"]}],
            },
        },
        "client": {
            "tls": True,
            "ca_file": str(authority.file),
            "token_file": str(token),
            **authority.files("stages"),
        },
    }
    file = tmp_path / "weir.yaml"
    file.write_text(json.dumps(settings))
    ports = [f"--set={name}={free_port()}" for name in (*PORTS, "monitor.metrics_port", "monitor.page_port")]
    arguments = ("--log", str(log), "--once", "--ranks", "1", "--store", str(tmp_path / "store"))
    done = weir("up", *arguments, "--config", str(file), *ports, within=500)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    # The tour has asked and clicked, and the monitor has measured through the server.
    assert "weir query u" in said
    assert "weir click u" in said
    assert "recall@" in said
    assert token.read_text() not in said
    for written in (tmp_path / "store" / "logs").iterdir():
        assert token.read_text() not in written.read_text()

    # Without a token the client says what is missing, and with a broken one, which file.
    asked = ("query", "u1", "--store", str(tmp_path / "store"))
    token.write_text("not a token\n")
    refused = weir(*asked, within=60)
    assert refused.returncode == 1
    assert f"{token} holds no bearer token" in refused.stderr
    assert "not a token" not in refused.stderr
