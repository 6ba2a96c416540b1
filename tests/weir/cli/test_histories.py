"""``weir histories``, as a user types it, against a real Redis."""

from pathlib import Path

from tests.serving.shared.redis_server import RedisServer
from tests.serving.support import write_window
from tests.serving.users import Event
from tests.weir.cli.interactions import refused, weir
from weir.contracts import Store


def test_users_are_in_redis_after_one_run_and_a_second_writer_or_none_is_told(tmp_path: Path) -> None:
    (folder := tmp_path / "redis").mkdir()
    store = Store(str(tmp_path / "store"))
    write_window(store, 0, [Event("ann", "a", 1_700_000_000_000)])
    server = RedisServer(folder)
    try:
        command = ["histories", "--store", store.url, "--redis", server.url]
        result = weir(*command)
        assert result.exit_code == 0, result.output
        assert len(server.client.keys("weir:u:*")) == 1
        server.client.set("weir:histories:writer", "another")
        assert "another follower writes to Redis" in refused(weir(*command), 1)
    finally:
        server.stop()
    assert f"Redis at {server.url}: Error" in refused(weir(*command), 1)
    assert "must be redis://HOST" in refused(weir("histories", "--store", store.url, "--redis", "cache:6379"), 1)
