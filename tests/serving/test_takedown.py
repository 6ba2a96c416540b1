"""Only a list that is understood, and names a served item, lifts a takedown; or an emptied file."""

import bz2
import codecs
import gzip
import json
import logging
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.catalogue import CatalogueFiles, CatalogueFollower, Takedown
from weir.serving.bundles.loading import load_bundle
from weir.serving.metrics import CatalogueMetrics

ITEMS = [f"item-{number}" for number in range(20)]

WRONG: dict[str, Callable[[list[str]], bytes]] = {
    "utf-16 of PowerShell": lambda ids: "".join(f"{one}\r\n" for one in ids).encode("utf-16"),
    "utf-16-be": lambda ids: codecs.BOM_UTF16_BE + "\n".join(ids).encode("utf-16-be"),
    "utf-16 without a mark": lambda ids: "\n".join([*ids, ""]).encode("utf-16-le"),
    "utf-32": lambda ids: "\n".join(ids).encode("utf-32"),
    "gzip": lambda ids: gzip.compress("\n".join(ids).encode()),
    "bzip2": lambda ids: bz2.compress("\n".join(ids).encode()),
    "zlib": lambda ids: zlib.compress("\n".join(ids).encode()),
    "in quotes": lambda ids: "".join(f'"{one}"\n' for one in ids).encode(),
    "in single quotes": lambda ids: "".join(f"'{one}',\n" for one in ids).encode(),
    "JSON Lines": lambda ids: "".join(json.dumps({"item_id": one}) + "\n" for one in ids).encode(),
    "JSON": lambda ids: json.dumps(ids).encode(),
    "JSON on lines": lambda ids: json.dumps(ids, indent=2).encode(),
    "with tabs": lambda ids: "".join(f"{one}\tabuse\n" for one in ids).encode(),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> LoadedBundle:
    store = Store(str(tmp_path_factory.mktemp("takedown") / "store"))
    write_bundle(store, "v1", Catalogue.random(items=len(ITEMS)))
    return load_bundle(BundleLog(store), "v1")


class Listed:
    """A takedown file and what a server makes of it."""

    def __init__(self, folder: Path, bundle: LoadedBundle) -> None:
        self.file, self.bundle, self.registry = folder / "takedown.txt", bundle, CollectorRegistry()
        self.takedown = Takedown(str(self.file), CatalogueMetrics(self.registry))
        self._writes = 0

    def write(self, data: bytes, *, served: bool = True) -> set[int]:
        """Write the file; return the keys that are taken down once it was looked at."""
        self._writes += 1
        draft = self.file.with_suffix(f".{self._writes}")
        draft.write_bytes(data)
        draft.replace(self.file)
        self.takedown.look(*([self.bundle] if served else []))
        return set(self.takedown.keys("").tolist())

    @property
    def unusable(self) -> float | None:
        return self.registry.get_sample_value("weir_catalogue_unusable", {"file": "takedown"})


@pytest.fixture
def listed(tmp_path: Path, bundle: LoadedBundle) -> Listed:
    return Listed(tmp_path, bundle)


def lines(ids: list[str]) -> bytes:
    return "".join(f"{one}\n" for one in ids).encode()


def keys(ids: list[str]) -> set[int]:
    return {hash_id(one) for one in ids}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("served", [True, False])
def test_a_list_in_another_format_lifts_nothing_and_is_said(
    listed: Listed, name: str, served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = listed.write(lines(ITEMS[:6]), served=served)
    assert before == keys(ITEMS[:6])
    with caplog.at_level(logging.ERROR):
        for ids in (ITEMS[:7], ITEMS[:1], ITEMS[10:12]):
            assert before <= listed.write(WRONG[name](ids), served=served)
            assert listed.unusable == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert all("cannot be understood as a list of ids" in message for message in caplog.messages)
    assert listed.write(lines(ITEMS[:2])) == keys(ITEMS[:2])
    assert listed.unusable == 0
    assert listed.write(b"") == set()


def is_understood(data: bytes) -> bool:
    """Whether a list of this content may lift another: blank, or one that names an item of the bundle."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    return not text.strip("\n\r\t\x0b\x0c ") or not {*text.split()}.isdisjoint(ITEMS)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(st.characters(codec="utf-8"), max_size=60).map(str.encode),
        st.lists(st.sampled_from([*ITEMS, "gone", '"item-1"', "\x00", "\xff"]), max_size=6).map(lines),
        st.tuples(st.sampled_from(sorted(WRONG)), st.lists(st.sampled_from(ITEMS), min_size=1)).map(
            lambda made: WRONG[made[0]](made[1])
        ),
    )
)
def test_whatever_a_file_holds_it_lifts_nothing_unless_it_names_an_item_or_is_empty(
    listed: Listed, data: bytes
) -> None:
    before = listed.write(lines(ITEMS[:6]))
    assert before == keys(ITEMS[:6])
    after = listed.write(data)
    assert before <= after or is_understood(data)


def test_lines_that_name_an_item_count_beside_one_that_does_not(listed: Listed) -> None:
    listed.write(lines(ITEMS[:2]))
    assert listed.write(lines(["item-7"]) + b"b\xe4r\n" + lines(["item-8"])) == keys(
        ["item-0", "item-1", "item-7", "item-8"]
    )
    assert listed.unusable == 1
    # What a bad list has added is gone with it.
    assert listed.write(lines(["item-7"])) == keys(["item-7"])


def test_a_list_of_unknown_ids_is_a_warning_and_lifts_nothing(listed: Listed, caplog: pytest.LogCaptureFixture) -> None:
    listed.write(lines(ITEMS[:2]))
    with caplog.at_level(logging.WARNING):
        assert listed.write(lines(["ITEM-7", "ITEM-8"])) == keys([*ITEMS[:2], "ITEM-7", "ITEM-8"])
        for _ in range(3):
            listed.takedown.look(listed.bundle)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert listed.unusable == 0
    assert listed.write(lines(["ITEM-7", "item-8"])) == keys(["ITEM-7", "item-8"])


def test_a_list_that_precedes_the_first_bundle_is_judged_by_it(
    listed: Listed, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert listed.write(lines(["gone"]), served=False) == keys(["gone"])
        assert not caplog.records
        listed.takedown.look(listed.bundle)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_catalogue_of_unknown_items_is_a_warning(
    tmp_path: Path, bundle: LoadedBundle, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "items.csv"
    follower = CatalogueFollower(CatalogueFiles(str(path)), CatalogueMetrics(CollectorRegistry()))
    with caplog.at_level(logging.WARNING):
        path.write_text("item_id,tags\nITEM-1,jazz\n")
        for _ in range(3):
            follower.look(bundle)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        path.write_text("item_id,tags\nITEM-1,jazz\nitem-1,jazz\n")
        follower.look(bundle)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    "encode", [gzip.compress, lambda data: data.decode().encode("utf-16"), lambda _: b"\x00\xff" * 99]
)
def test_a_catalogue_in_another_encoding_is_read_right_or_changes_nothing(
    tmp_path: Path, bundle: LoadedBundle, ending: str, encode: Callable[[bytes], bytes]
) -> None:
    text = {
        "csv": "item_id,tags,available_until\nitem-3,jazz,2001-01-01\nitem-4,soul,\n",
        "jsonl": '{"item_id": "item-3", "tags": ["jazz"], "available_until": "2001-01-01"}\n{"item_id": "item-4"}\n',
        "parquet": "PAR1PAR1",
    }[ending]
    path = tmp_path / f"items.{ending}"
    follower = CatalogueFollower(CatalogueFiles(str(path)), CatalogueMetrics(CollectorRegistry()))
    if ending != "parquet":
        path.write_text(text)
        follower.look(bundle)
        assert bundle.state.view is not None
    before = None if (tagged := bundle.state.view) is None else (sorted(tagged.limited.rows), sorted(tagged.tags))
    draft = tmp_path / "draft"
    draft.write_bytes(encode(text.encode()))
    draft.replace(path)
    follower.look(bundle)
    after = None if (tagged := bundle.state.view) is None else (sorted(tagged.limited.rows), sorted(tagged.tags))
    assert after == before
