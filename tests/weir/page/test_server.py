"""The page of a small real store and a real server, asked over HTTP."""

import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ports import free_port
from tests.serving.process import ServerProcess
from tests.weir.up.damage import WINDOWS, whole_store
from weir.config import Settings
from weir.contracts import Store, WindowLog
from weir.contracts.commits.commit import LetterFile
from weir.page.server import page_served
from weir.serving.client import RetrievalClient, by_history, by_item, by_user
from weir.serving.http import connection

JSON = {"Content-Type": "application/json"}
LINE = '{"user_id": "ann", <script>'


def add_letters(store: Store) -> None:
    """Commit a dead letter, as the pipeline does."""
    letter = {"partition": "a.jsonl", "position": 7, "reason": "malformed_json", "detail": "no", "raw": LINE}
    name = "dead-letters/a.jsonl/0.jsonl"
    entry = store.write(name, json.dumps(letter).encode() + b"\n", rows=1)
    found = entry.model_dump() | {"name": name}
    file = LetterFile.model_validate(found | {"partition": "a.jsonl", "reasons": {"malformed_json": 1}})
    WindowLog(store).commit(letters=(file,))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = whole_store(str(tmp_path_factory.mktemp("store")))
    add_letters(store)
    with ServerProcess(store) as process:
        process.serving("00000000-0000000001")
        yield process


def settings_of(server: ServerProcess, log: str, **page: object) -> Settings:
    return Settings.model_validate(
        {
            "pipeline": {"log": log, "metrics_port": 1},
            "trainer": {"metrics_port": 1},
            "serving": {"metrics_port": int(server.said(r"metrics on port (\d+)").group(1))},
            "monitor": {"target": server.target, "page_port": 0, "metrics_port": 1, **page},
        }
    )


@pytest.fixture(scope="module")
def address(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with page_served(settings_of(server, str(tmp_path_factory.mktemp("log"))), server.store) as found:
        assert found is not None
        yield found


def ask(
    address: str, path: str, body: object = None, headers: dict[str, str] = JSON
) -> tuple[int, str, dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, headers)  # noqa: S310 - http
    try:
        answer = urllib.request.urlopen(request, timeout=60)  # noqa: S310 - http
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read().decode(), dict(answer.headers)


def news(address: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the first messages of the stream."""
    with urllib.request.urlopen(f"{address}/api/stream", timeout=60) as stream:  # noqa: S310 - http
        found = []
        while len(found) < count:
            line = stream.readline().decode()
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
        return found


QUERIES = st.one_of(
    st.sampled_from(["user-1", "user-7", "stranger"]).map(lambda user: {"user": user}),
    st.lists(st.sampled_from(["item-1", "item-5", "unknown"]), min_size=1, max_size=4).map(
        lambda ids: {"history": ids}
    ),
    st.sampled_from(["item-3", "unknown"]).map(lambda item: {"item": item}),
)


@settings(max_examples=20)
@given(QUERIES, st.integers(1, 12), st.booleans())
def test_an_answer_is_that_of_grpc(
    address: str, server: ServerProcess, query: dict[str, Any], k: int, exclude_seen: bool
) -> None:
    status, text, _ = ask(address, "/api/query", {**query, "k": k, "exclude_seen": exclude_seen})
    assert status == 200
    found = json.loads(text)
    make = {"user": by_user, "history": by_history, "item": by_item}
    ((kind, value),) = query.items()
    with RetrievalClient(server.target) as client:
        expected = client.retrieve([make[kind](value, k)], exclude_seen=exclude_seen).hits[0]
    assert [hit["item"] for hit in found["hits"]] == expected.item_ids
    assert [hit["score"] for hit in found["hits"]] == expected.scores.tolist()
    assert (found["missing"], found["fallback"]) == (expected.missing_item_ids, expected.fallback)


def test_items_have_their_ranks_by_popularity(address: str) -> None:
    hits = json.loads(ask(address, "/api/query", {"user": "user-1", "k": 12})[1])["hits"]
    assert sorted(hit["popularity"] for hit in hits) == list(range(1, 13))
    atlas = json.loads(ask(address, "/api/map")[1])
    assert [atlas["ids"].index(hit["item"]) + 1 for hit in hits] == [hit["popularity"] for hit in hits]


@pytest.mark.parametrize("body", [{}, [], {"user": ""}, {"history": "a"}, {"item": 3}, {"user": "u", "k": "many"}])
def test_what_is_no_query_is_refused(address: str, body: object) -> None:
    assert ask(address, "/api/query", body)[0] == 400


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user-1", "item-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
BODIES = st.one_of(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("user", "history", "item", "k", "exclude_seen"), VALUES)
    ).map(json.dumps).map(str.encode),
    VALUES.map(json.dumps).map(str.encode),
    st.binary(max_size=40),
    st.sampled_from(
        [
            b'{"user": "user-1", "k": 1e400}', b'{"user": "user-1", "k": 0}', b'{"user": "user-1", "k": -1}',
            b'{"user": "user-1", "k": NaN}', b'{"user": "user-1", "k": ' + b"9" * 5000 + b"}", b'{"user": "\\ud800"}',
            b"[" * 60_000, b'{"user":' * 7_000, b'{"user": "' + b"x" * 60_000 + b'"}', b"\xff\xfe{}", b"",
        ]
    ),
)  # fmt: skip


def posted(address: str, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(address + path, body, JSON | headers)  # noqa: S310 - http
    try:
        answer = urllib.request.urlopen(request, timeout=60)  # noqa: S310 - http
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BODIES, st.sampled_from(["application/json", "application/json; charset=nope"]))
def test_a_caller_s_mistake_is_no_fault_of_the_page(
    address: str, caplog: pytest.LogCaptureFixture, body: bytes, kind: str
) -> None:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for path in ("/api/query", "/api/click"):
            if path == "/api/click" and b"item" in body and b"user" in body:
                continue  # a click that counts waits for the pipeline, which does not run here
            status, answer = posted(address, path, body, **{"Content-Type": kind})
            assert status in {200, 400}
            if status == 400:
                assert json.loads(answer)["code"] in {3, 9}
    assert not [record for record in caplog.records if record.exc_info]


def test_errors_of_the_server_keep_their_status(server: ServerProcess, tmp_path: Path) -> None:
    gone = settings_of(server, str(tmp_path), timeout_seconds=2.0, target=f"127.0.0.1:{free_port()}")
    with page_served(gone, server.store) as address:
        assert address is not None
        assert ask(address, "/api/query", {"user": "user-1"})[0] in {503, 504}


def test_a_body_that_does_not_come_is_given_up(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "BODY_SECONDS", 0.5)
    host, port = address.removeprefix("http://").split(":")
    head = f"POST /api/query HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as slow:
        slow.sendall(head.encode())
        assert slow.recv(65536).split()[1] == b"408"
    assert not [record for record in caplog.records if record.exc_info]


def test_the_stream_starts_with_everything_and_goes_on_with_what_is_new(address: str) -> None:
    first, second = news(address, 2)
    assert first["whole"]
    assert first["state"]["windows"] == WINDOWS
    assert first["state"]["dead"] == 0, "the positions of partitions count letters, and these have none"
    assert first["state"]["served"]["bundle"] == "00000000-0000000001"
    assert first["state"]["answering"] == {"pipeline": False, "trainer": False, "serving": True, "monitor": False}
    assert [recall["window"] for recall in first["recalls"]] == list(range(WINDOWS))
    assert first["recalls"][0]["model"] == 0.5
    assert [letter["raw"] for letter in first["letters"]] == [LINE]
    assert not second["whole"]
    assert second["recalls"] == []
    assert "letters" not in second
    assert second["points"]["time"] > first["points"]["time"][-1:]


def test_no_other_page_may_ask(address: str) -> None:
    for path in ("/", "/api/stream", "/api/map"):
        assert ask(address, path, headers={"Host": "evil.example"})[0] == 403
        assert ask(address, path, headers={"Origin": "http://evil.example"})[0] == 403
    own = address.removeprefix("http://")
    body = {"user": "user-1"}
    assert ask(address, "/api/query", body, JSON | {"Origin": f"http://{own}"})[0] == 200
    for origin in ("null", "http://127.0.0.1:1", f"http://evil.example/{own}", f"http://{own}.evil.example"):
        assert ask(address, "/api/query", body, JSON | {"Origin": origin})[0] == 403
        assert ask(address, "/api/click", body | {"item": "item-1"}, JSON | {"Origin": origin})[0] == 403
    assert ask(address, "/api/query", body, {"Content-Type": "text/plain"})[0] == 415


def test_everything_that_the_page_loads_is_served_by_itself(address: str) -> None:
    _, page, headers = ask(address, "/")
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "http" not in page.replace("http-equiv", "")
    static = Path(__file__).parents[3] / "weir" / "page" / "static"
    for file in [*static.glob("*.*"), *static.glob("vendor/*.[jc]s*")]:
        status, text, headers = ask(address, "/" + str(file.relative_to(static)) if file.name != "index.html" else "/")
        assert (status, text) == (200, file.read_text())
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(address, "/vendor/../../server.py")[0] == 404


def test_off_loopback_it_is_read_only_and_shows_no_data_unless_told_to(server: ServerProcess, tmp_path: Path) -> None:
    for shows in (False, True):
        config = settings_of(server, str(tmp_path), page_host="0.0.0.0", page_shows_data=shows)  # noqa: S104
        with page_served(config, server.store) as found:
            assert found is not None
            reached = found.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
            (first,) = news(reached)
            assert first["rights"] == {"data": shows, "click": False}
            assert ("letters" in first) == shows
            assert LINE not in json.dumps(first) or shows
            assert ask(reached, "/api/query", {"user": "user-1"})[0] == (200 if shows else 403)
            assert ask(reached, "/api/click", {"user": "user-1", "item": "item-1"})[0] == 403
    assert not list(tmp_path.iterdir())


def open_stream(address: str) -> tuple[HTTPConnection, int]:
    connection = HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("GET", "/api/stream")
    return connection, connection.getresponse().status


def opened(address: str) -> HTTPConnection:
    """Return an open stream; one that has been left is noticed when there is something to send."""
    while True:
        connection, status = open_stream(address)
        if status == 200:
            return connection
        connection.close()


def test_streams_are_capped_and_those_that_end_make_room(address: str) -> None:
    streams = [opened(address) for _ in range(32)]
    connection, status = open_stream(address)
    connection.close()
    assert status == 503
    streams.pop().close()
    opened(address).close()
    for stream in streams:
        stream.close()


def test_it_ends_with_its_streams_and_leaves_no_thread(server: ServerProcess, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with page_served(settings_of(server, str(tmp_path)), server.store) as found:
        connection = HTTPConnection(str(found).removeprefix("http://"), timeout=60)
        connection.request("GET", "/api/stream")
        answer = connection.getresponse()
    assert "weir-page" not in {thread.name for thread in set(threading.enumerate()) - before}
    answer.read()


def test_without_a_port_there_is_no_page_and_a_taken_one_is_an_error(server: ServerProcess, tmp_path: Path) -> None:
    with page_served(settings_of(server, str(tmp_path), page_port=None), server.store) as found:
        assert found is None
    with page_served(settings_of(server, str(tmp_path)), server.store) as found:
        taken = settings_of(server, str(tmp_path), page_port=int(str(found).rpartition(":")[2]))
        with pytest.raises(OSError, match="in use"), page_served(taken, server.store):
            pass
