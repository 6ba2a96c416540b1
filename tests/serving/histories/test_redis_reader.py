"""A server's reader against a real Redis that goes away, hangs, is emptied and comes back."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.histories.redis_server import RedisServer
from tests.serving.histories.support import follower, mapped, reader, said, sample
from tests.serving.support import write_window
from tests.serving.users import Event
from weir.contracts import Store, UserError, hash_id
from weir.serving.histories.redis_database import POSITION, connect, place_of

T = 1_700_000_000_000
ANN, EVE = hash_id("ann"), hash_id("eve")
UNKNOWN = [[[], []], [([], True), ([], True)]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(str(tmp_path / "store"))
    write_window(found, 0, [Event("ann", "a", T), Event("ann", "bad", T + 1, label=-1)])
    return found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may stop."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.stop()


def test_a_redis_that_is_away_or_hangs_costs_histories_for_a_moment_and_comes_back(
    store: Store, own: RedisServer
) -> None:
    follower(store, own.url).step()
    histories = reader(store, own.url, timeout=0.2)
    whole = said(mapped(store), [ANN, EVE])
    assert said(histories, [ANN, EVE]) == whole
    own.hang(on=True)
    started = time.monotonic()
    assert said(histories, [ANN, EVE]) == UNKNOWN
    # Only the first look-up waits: until Redis has answered again, the others do not ask.
    assert said(histories, [ANN, EVE]) == UNKNOWN
    assert time.monotonic() - started < 0.4
    assert sample(histories, "unavailable") == 4
    assert "does not answer" in histories.problem
    own.hang(on=False)
    histories.catch_up()
    assert (histories.problem, said(histories, [ANN, EVE])) == ("", whole)
    own.stop()
    histories.catch_up()
    assert said(histories, [ANN, EVE]) == UNKNOWN
    own.start()
    histories.catch_up()
    assert "holds no histories" in histories.problem
    follower(store, own.url).step()
    histories.catch_up()
    assert (histories.problem, said(histories, [ANN, EVE])) == ("", whole)
    assert sample(histories, "unavailable") == 6


def test_emptied_between_two_looks(store: Store, database: RedisServer) -> None:
    one = follower(store, database.url)
    one.step()
    histories = reader(store, database.url)
    database.client.flushall()
    assert said(histories, [ANN, EVE]) == UNKNOWN
    assert "holds no histories" in histories.problem
    database.client.set(POSITION, b"{}")
    histories.catch_up()
    assert "generation: Field required" in histories.problem


def test_a_load_between_two_looks_is_read_at_once(store: Store, database: RedisServer) -> None:
    follower(store, database.url).step()
    histories = reader(store, database.url)
    database.client.flushall()
    follower(store, database.url).step()
    assert said(histories, [ANN, EVE]) == said(mapped(store), [ANN, EVE])
    assert sample(histories, "unavailable") == 0


def test_staleness_is_measured(store: Store, database: RedisServer) -> None:
    one = follower(store, database.url)
    one.step()
    histories = reader(store, database.url)
    assert (sample(histories, "behind_commits"), histories.sequence) == (0, 0)
    assert 0 <= sample(histories, "behind_seconds") < 5
    write_window(store, 1, [Event("ann", "b", T + 2)])
    time.sleep(0.1)
    histories.catch_up()
    assert sample(histories, "behind_commits") == 1
    assert sample(histories, "behind_seconds") >= 0.1
    one.step()
    histories.catch_up()
    assert (sample(histories, "behind_commits"), histories.sequence, sample(histories, "sequence")) == (0, 1, 1)


def test_a_damaged_value_makes_its_user_unknown(store: Store, database: RedisServer) -> None:
    write_window(store, 1, [Event("eve", "b", T + 2)])
    follower(store, database.url).step()
    histories = reader(store, database.url)
    [key] = [key for key in database.client.keys("weir:u:*") if key.endswith(ANN.to_bytes(8, "little", signed=True))]
    database.client.setrange(key, 20, b"x")
    assert said(histories, [ANN, EVE]) == [[[], [hash_id("b")]], [([], True), ([hash_id("b")], False)]]
    assert sample(histories, "errors") == 1


@pytest.mark.parametrize("url", ["files", "http://somewhere", "localhost:6379"])
def test_what_is_no_redis_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="redis://HOST"):
        connect(url, 1)


def test_a_password_comes_from_the_environment_and_is_never_shown(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer(tmp_path, "--requirepass", "secret")
    try:
        assert "does not answer" in reader(store, server.url).problem
        monkeypatch.setenv("WEIR_REDIS_PASSWORD", "secret")
        assert "holds no histories" in reader(store, server.url).problem
        monkeypatch.setenv("WEIR_REDIS_PASSWORD", "wrong")
        with_password = server.url.replace("//", "//:secret@")
        problem = reader(store, with_password).problem
        assert "holds no histories" in problem
        assert "secret" not in problem
        assert place_of(with_password) == server.url
    finally:
        server.stop()
