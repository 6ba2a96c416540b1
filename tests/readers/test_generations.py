import logging
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.readers import KnownFile, Partition, discover, generation, identified
from weir.readers.generations import same_start


def look(folder: Path, content: bytes | None = None, *, at: int = 0) -> Partition:
    if content is not None:
        (folder / "a.jsonl").write_bytes(content)
        os.utime(folder / "a.jsonl", (at, at))
    [partition] = discover(str(folder))
    return partition


def known(*partitions: Partition) -> dict[str, KnownFile]:
    return {one.key: KnownFile(one.size, one.fingerprint, one.arrival_ms) for one in partitions}


def taken(partition: Partition, before: dict[str, KnownFile]) -> Partition:
    found = identified(partition, before)
    assert found is not None
    return found


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.integers(0, 5000))
def test_a_fingerprint_fits_all_that_starts_as_the_file_did(content: bytes, more: bytes, place: int) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/generations/a.jsonl", content)
    [before] = discover("memory://generations/a.jsonl")
    identity = identified(before, {})
    assert identity is not None
    fingerprint = identity.fingerprint
    assert fingerprint.startswith(f"{min(4096, len(content))}:") or not content
    fs.pipe_file("/generations/a.jsonl", content + more)
    [grown] = discover("memory://generations/a.jsonl")
    assert same_start(grown, fingerprint)
    changed = bytearray(content + more)
    if place < len(changed):
        changed[place] ^= 1
        fs.pipe_file("/generations/a.jsonl", bytes(changed))
        assert same_start(grown, fingerprint) == (place >= min(4096, len(content)))
    fs.pipe_file("/generations/a.jsonl", content[:-1])
    [cut] = discover("memory://generations/a.jsonl")
    assert same_start(cut, fingerprint) == (len(content) == 0 or len(content) > 4096)
    assert same_start(cut, "")


def test_a_file_keeps_its_key_as_long_as_it_grows(tmp_path: Path) -> None:
    first = taken(look(tmp_path, b"one\n"), {})
    assert (first.key, first.fingerprint[:2]) == ("a.jsonl", "4:")
    second = taken(look(tmp_path, b"one\ntwo\n", at=1), known(first))
    assert (second.key, second.fingerprint[:2]) == ("a.jsonl", "8:")
    assert taken(look(tmp_path, b"one\ntwo\n", at=2), known(second)) == look(tmp_path).__class__(
        **(vars(second) | {"arrival_ms": 2000})
    )


@pytest.mark.parametrize("content", [b"", b"on", b"two\n", b"two\nthree\n" * 1000])
def test_a_file_that_was_rewritten_is_the_next_generation_and_said(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = known(first := taken(look(tmp_path, b"one\n"), {}))
    second = taken(look(tmp_path, content, at=1), before)
    assert (second.key, generation(second.key), second.size) == ("a.jsonl@2", 2, len(content))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "was rewritten under its name" in caplog.text
    assert "as a.jsonl@2" in caplog.text
    # As long as no commit names it, it stays the second; and so it does once one does.
    assert taken(look(tmp_path), before).key == "a.jsonl@2"
    assert taken(look(tmp_path), known(first, second)) == second
    assert taken(look(tmp_path, content + b"more\n", at=2), known(first, second)).key == "a.jsonl@2"
    assert taken(look(tmp_path, b"x", at=3), known(first, second)).key == ("a.jsonl@3" if content else "a.jsonl@2")


def test_what_has_not_changed_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = taken(look(tmp_path, b"one\n"), {})
    requests: list[Any] = []
    monkeypatch.setattr(type(first.fs), "cat_file", lambda *_, **__: requests.append(1) or b"one\n")
    assert taken(look(tmp_path), known(first)) == first
    assert not requests
    os.utime(tmp_path / "a.jsonl", (5, 5))
    assert taken(look(tmp_path), known(first)).key == "a.jsonl"
    assert len(requests) == 1


def test_a_commit_without_a_fingerprint_says_nothing_of_the_start(tmp_path: Path) -> None:
    before = {"a.jsonl": KnownFile(4, "", None)}
    assert taken(look(tmp_path, b"anything\n"), before).key == "a.jsonl"
    assert taken(look(tmp_path, b"an\n"), before).key == "a.jsonl@2"


def test_a_file_that_cannot_be_looked_at_is_left_to_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partition = look(tmp_path, b"one\n")
    (tmp_path / "a.jsonl").unlink()
    assert identified(partition, {}) is None
    assert "the next look tries again" in caplog.text

    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError("no")

    monkeypatch.setattr(type(partition.fs), "cat_file", refuse)
    assert identified(partition, {}) == partition


@pytest.mark.parametrize(("key", "number"), [("a.jsonl", 1), ("a.jsonl@2", 2), ("me@2.jsonl", 1), ("a@7/b.jsonl", 1)])
def test_a_key_tells_its_generation(key: str, number: int) -> None:
    assert generation(key) == number
