import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexInfo, Pin, Store, Withdrawal
from weir.contracts.storage.documents import encode_fields, write_document
from weir.contracts.storage.local_files import new_draft
from weir.contracts.verification import verify


@pytest.fixture
def log(tmp_path: Path) -> BundleLog:
    return BundleLog(Store(str(tmp_path)))


def write(log: BundleLog, version: str, **changes: Any) -> BundleManifest:
    fields: dict[str, Any] = {
        "version": version,
        "created_at": 1.8e9,
        "trained_sequence": 3,
        "trained_window": "w",
        "max_event_ms": 5,
        "items": 1,
        "dimension": 2,
        "metric": "cosine",
        "history_length": 4,
        "index": IndexInfo(type="Flat"),
        "promoted": True,
        "verdict": "first bundle",
        "software_version": "0.1.0",
        "files": (log.store.write(f"bundles/{version}/index.faiss", b"index"),),
    }
    manifest = BundleManifest(**fields | changes)
    log.commit(manifest)
    return manifest


def test_a_promoted_bundle_is_current(log: BundleLog) -> None:
    assert log.current() is None
    manifest = write(log, "0001")
    log.promote("0001")
    assert log.current() == "0001"
    assert log.manifest("0001") == manifest
    assert log.read(manifest, "index.faiss") == b"index"


def test_only_what_exists_is_promoted(log: BundleLog) -> None:
    with pytest.raises(FileNotFoundError):
        log.promote("0009")
    assert log.current() is None


def test_the_last_ones_and_the_promoted_one_are_kept(log: BundleLog) -> None:
    for version in ["0001", "0002", "0003", "0004", "0005"]:
        write(log, version)
    log.promote("0001")
    assert log.retire(keep=2) == ["0002", "0003"]
    assert log.versions() == ["0001", "0004", "0005"]
    assert not log.store.exists("bundles/0002")


def chained(log: BundleLog, version: str, parent: str, **changes: Any) -> BundleManifest:
    ref = log.manifest_and_ref(parent)[1]
    return write(log, version, **{"schema_version": 2, "parent": ref, "base": "0001", "depth": 1, **changes})


def test_a_chain_leads_from_the_complete_bundle_to_the_newest_delta(log: BundleLog) -> None:
    first = write(log, "0001")
    second = chained(log, "0002", "0001")
    third = chained(log, "0003", "0002")
    assert log.chain(first) == [first]
    assert log.chain(third) == [first, second, third]
    assert log.chain(third, [second]) == [second, third]
    assert log.chain(third, [third, first]) == [third]
    other = second.model_copy(update={"created_at": 1.0})
    assert log.chain(third, [other]) == [first, second, third]


def test_a_chain_with_a_gap_or_another_parent_names_the_bundle(log: BundleLog) -> None:
    write(log, "0001")
    delta = chained(log, "0002", "0001")
    log.promote("0002")
    write(log, "0001", verdict="another one of the same name")
    with pytest.raises(CorruptArtefactError, match=r"0001/MANIFEST.json: has checksum .*, bundle 0002 changes the one"):
        log.chain(delta)
    assert [finding.name for finding in verify(log.store).findings] == ["bundles/0001/MANIFEST.json"]
    log.store.remove("bundles/0001")
    with pytest.raises(CorruptArtefactError, match=r"bundles/0001/MANIFEST.json: is missing, and bundle 0002"):
        log.chain(delta)
    assert [finding.name for finding in verify(log.store).findings] == ["bundles/0001/MANIFEST.json"]


def test_what_is_kept_is_kept_with_its_chain(log: BundleLog) -> None:
    write(log, "0001")
    for version, parent in [("0002", "0001"), ("0003", "0002"), ("0004", "0003")]:
        chained(log, version, parent)
    write(log, "0005")
    write(log, "0006")
    log.promote("0003")
    assert log.retire(keep=1) == ["0004", "0005"]
    assert log.versions() == ["0001", "0002", "0003", "0006"]
    assert log.retire(keep=1, spare=["0002"]) == []
    log.promote("0006")
    assert log.retire(keep=1, spare=["0002"]) == ["0003"]
    assert log.retire(keep=1) == ["0001", "0002"]


def compacted(log: BundleLog, version: str) -> BundleManifest:
    """Write the complete bundle that stands for a delta."""
    delta, ref = log.manifest_and_ref(version)
    nothing = {"schema_version": 1, "parent": None, "base": None, "depth": 0}
    manifest = delta.model_copy(update={**nothing, "compacts": ref})
    files = (log.store.write(f"{manifest.folder}/index.faiss", b"other index"),)
    manifest = manifest.model_copy(update={"files": files})
    log.commit(manifest)
    return manifest


def test_a_chain_starts_at_what_has_been_compacted(log: BundleLog) -> None:
    first = write(log, "0001")
    second, third = chained(log, "0002", "0001"), chained(log, "0003", "0002", depth=2)
    whole = compacted(log, "0002")
    assert whole.folder == "bundles/0002/complete"
    assert log.chain(second) == [whole]
    assert log.chain(third) == [whole, third]
    assert log.chain(third, [whole]) == [whole, third]
    # Who has the delta needs nothing else, and who has an earlier version needs the deltas since.
    assert log.chain(third, [second]) == [second, third]
    assert log.chain(third, [first]) == [first, second, third]
    other = first.model_copy(update={"version": "0000"})
    assert log.chain(third, [other]) == [whole, third]
    later = compacted(log, "0003")
    assert log.chain(third) == [later]
    assert log.chain(third, [whole]) == [whole, third]
    log.store.remove("bundles/0001")
    assert log.chain(third, [first]) == [later]
    log.store.remove(later.folder)
    write(log, "0001")
    assert log.versions() == ["0001", "0002", "0003"]
    assert log.read(whole, "index.faiss") == b"other index"
    log.promote("0003")
    assert verify(log.store).findings == []


def test_what_is_compacted_stands_for_one_delta_only(log: BundleLog, caplog: pytest.LogCaptureFixture) -> None:
    first = write(log, "0001")
    chained(log, "0002", "0001")
    whole = compacted(log, "0002")
    again = chained(log, "0002", "0001", verdict="written again")
    assert log.chain(again) == [first, again]
    log.store.write(f"{whole.folder}/MANIFEST.json", b"{}")
    assert log.chain(again) == [first, again]
    assert "the whole chain of bundle 0002 is needed: " in caplog.text


def test_what_a_compacted_chain_was_made_of_goes_when_nothing_kept_names_it(log: BundleLog) -> None:
    write(log, "0001")
    for version, parent in [("0002", "0001"), ("0003", "0002"), ("0004", "0003")]:
        chained(log, version, parent)
    whole = compacted(log, "0003")
    fifth = chained(log, "0005", "0004", base="0003", depth=2)
    log.promote("0005")
    # A version from before keeps its whole chain.
    assert log.retire(keep=2) == []
    assert log.retire(keep=1) == ["0001", "0002"]
    assert [one.version for one in log.chain(fifth)] == ["0003", "0004", "0005"]
    # What is between can still be served.
    assert log.chain(log.manifest("0004"))[0] == whole
    assert verify(log.store).findings == []
    log.store.remove(f"{whole.folder}/MANIFEST.json")
    missing = {finding.name for finding in verify(log.store).findings}
    assert missing == {"bundles/0002/MANIFEST.json"}


def test_what_a_killed_compaction_has_left_is_removed_after_an_hour(log: BundleLog) -> None:
    write(log, "0001")
    chained(log, "0002", "0001")
    left = [Path(log.store.path(f"bundles/{name}/complete/vectors.npy")) for name in ("0002", "0009")]
    for path in left:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    # Its delta was retired meanwhile.
    (left[1].parent / "MANIFEST.json").write_bytes(b"{}")
    log.retire()
    assert all(path.exists() for path in left)
    for path in [*left, left[1].parent / "MANIFEST.json"]:
        os.utime(path, (time.time() - 3700,) * 2)
    log.retire()
    assert not any(path.parent.exists() for path in left)
    assert log.versions() == ["0001", "0002"]


def test_young_bundles_are_kept_however_many(log: BundleLog) -> None:
    for number in range(4):
        write(log, f"000{number}", created_at=time.time() - 100 + number)
    assert log.retire(keep=1, younger_than=98.5) == ["0000", "0001"]
    assert log.retire(keep=1) == ["0002"]


def test_an_altered_file_is_named(log: BundleLog, tmp_path: Path) -> None:
    manifest = write(log, "0001")
    (tmp_path / "bundles/0001/index.faiss").write_bytes(b"iNdex")
    with pytest.raises(CorruptArtefactError, match=r"0001/index\.faiss: has checksum"):
        log.read(manifest, "index.faiss")
    with pytest.raises(CorruptArtefactError, match=r"does not list tower\.onnx"):
        log.read(manifest, "tower.onnx")


def test_a_version_cannot_leave_its_folder(log: BundleLog) -> None:
    with pytest.raises(ValidationError, match="version"):
        write(log, "../0001")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(damage=st.data())
def test_a_damaged_current_is_refused_by_name_and_replaced_by_the_next_promotion(
    log: BundleLog, tmp_path: Path, damage: st.DataObject
) -> None:
    write(log, "0001")
    log.promote("0001")
    path = tmp_path / "bundles/CURRENT"
    sound = path.read_bytes()
    place, bit = damage.draw(st.integers(0, len(sound) - 1)), damage.draw(st.integers(0, 7))
    flipped = sound[:place] + bytes([sound[place] ^ 1 << bit]) + sound[place + 1 :]
    damaged = damage.draw(
        st.sampled_from([flipped, sound[:place], b"", sound * 2, b"\xff\xfe\x00", b"0001" * 10_000]) | st.binary()
    )
    path.write_bytes(damaged)
    with pytest.raises(CorruptArtefactError, match="bundles/CURRENT: "):
        log.current()
    log.promote("0001")
    assert log.current() == "0001"


@pytest.mark.parametrize("place", [0, 20, 60, 300, -1])
def test_a_flipped_bit_in_a_manifest_is_found(log: BundleLog, tmp_path: Path, place: int) -> None:
    write(log, "0001")
    write(log, "0002")
    path = tmp_path / "bundles/0001/MANIFEST.json"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArtefactError, match=r"bundles/0001/MANIFEST\.json: "):
        log.manifest("0001")
    # It hides nobody else.
    assert [manifest.version for manifest in log.manifests()] == ["0002"]


def test_a_manifest_of_a_later_minor_version_is_read(log: BundleLog) -> None:
    class Later(BundleManifest):
        novelty: str = "unknown today"

    class LaterIndex(IndexInfo):
        novelty: str = "unknown today"

    manifest = write(log, "0001")
    later = Later(**manifest.model_dump(exclude={"index"}), index=LaterIndex(type="Flat"))
    write_document(log.store, "bundles/0001/MANIFEST.json", later)
    assert b"unknown today" in log.store.read("bundles/0001/MANIFEST.json")
    assert log.manifest("0001") == manifest


def test_a_manifest_under_another_name_is_refused(log: BundleLog) -> None:
    write(log, "0001")
    log.store.write("bundles/0002/MANIFEST.json", log.store.read("bundles/0001/MANIFEST.json"))
    with pytest.raises(CorruptArtefactError, match=r"0002/MANIFEST\.json: is bundles/0001/MANIFEST\.json"):
        log.manifest("0002")
    # A manifest that does not say which file it is still says which bundle it describes.
    fields = log.manifest("0001").model_dump_json(indent=1).encode()
    log.store.write("bundles/0002/MANIFEST.json", encode_fields(fields))
    with pytest.raises(CorruptArtefactError, match=r"0002/MANIFEST\.json: describes version 0001"):
        log.manifest("0002")
    with pytest.raises(CorruptArtefactError, match="0002"):
        log.promote("0002")


def test_a_bundle_retired_between_listing_and_reading_is_left_out(
    log: BundleLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, "0001")
    write(log, "0003")
    # What a listing showed that is a moment old.
    monkeypatch.setattr(BundleLog, "versions", lambda _log: ["0001", "0002", "0003"])
    assert [manifest.version for manifest in log.manifests()] == ["0001", "0003"]


def test_bundles_of_a_retraining_are_newer_whatever_their_names(log: BundleLog) -> None:
    write(log, "0007", created_at=1.0)
    write(log, "0008", created_at=2.0)
    write(log, "0001", created_at=3.0)
    log.promote("0001")
    assert log.retire(keep=2) == ["0007"]


def pin(version: str) -> Pin:
    return Pin(version=version, by="ann@shop", at=1.8e9, why="the new one repeats itself")


def test_a_pin_stays_until_it_is_lifted_and_is_never_retired(log: BundleLog) -> None:
    assert log.pin() is None
    for version in ("0001", "0002", "0003", "0004"):
        write(log, version)
    log.set_pin(pin("0001"))
    assert log.current() == "0001"
    assert not log.publish("0004")
    assert log.current() == "0001"
    log.promote("0002")
    assert log.retire(keep=1) == ["0003"]
    assert log.pin() == pin("0001")
    assert pin("0001").sentence == "pinned to 0001 by ann@shop at 2027-01-15 08:00 UTC: the new one repeats itself"
    # Whoever asks to publish finds out that another version was promoted past the pin, and puts that right.
    assert not log.publish("0004")
    assert log.current() == "0001"
    log.lift_pin()
    log.lift_pin()
    assert log.publish("0004")
    assert log.current() == "0004"


def test_a_pin_that_is_set_while_another_bundle_is_published_wins(
    log: BundleLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, "0001")
    write(log, "0002")
    promote = BundleLog.promote

    def overtaken(self: BundleLog, version: str) -> None:
        if version == "0002":
            log.set_pin(pin("0001"))
        promote(self, version)

    monkeypatch.setattr(BundleLog, "promote", overtaken)
    assert not log.publish("0002")
    assert log.current() == "0001"


def test_a_damaged_pin_pins_still(log: BundleLog, tmp_path: Path) -> None:
    write(log, "0001")
    write(log, "0002")
    log.set_pin(pin("0001"))
    (tmp_path / "bundles/PIN").write_bytes(b"")
    with pytest.raises(CorruptArtefactError, match="bundles/PIN: "):
        log.publish("0002")
    assert log.current() == "0001"


def test_nothing_is_retired_while_it_is_not_known_what_is_served(log: BundleLog, tmp_path: Path) -> None:
    for version in ("0001", "0002", "0003"):
        write(log, version)
    (tmp_path / "bundles/CURRENT").write_bytes(b"0001")
    with pytest.raises(CorruptArtefactError, match="CURRENT"):
        log.retire(keep=1)
    assert log.versions() == ["0001", "0002", "0003"]


def test_only_a_bundle_that_exists_is_pinned(log: BundleLog) -> None:
    with pytest.raises(FileNotFoundError):
        log.set_pin(pin("0009"))
    assert log.pin() is None


def test_a_withdrawal_is_kept_with_its_bundle(log: BundleLog) -> None:
    write(log, "0001")
    write(log, "0002")
    assert log.withdrawal("0002") is None
    said = Withdrawal(
        version="0002", fallback="0001", window="w", sequence=7, cases=200, at=1.8e9, verdict="rolled back: it fell"
    )
    log.withdraw(said)
    assert log.withdrawal("0002") == said
    log.promote("0001")
    assert log.retire(keep=1) == []
    write(log, "0003")
    assert log.retire(keep=1, spare=["0001"]) == ["0002"]
    assert not log.store.exists("bundles/0002")


def test_it_is_known_why_the_newest_bundle_is_not_promoted(log: BundleLog) -> None:
    assert log.held(None) is None
    first = write(log, "0001")
    assert log.held(first) is None, "it passed the gate, and is about to be promoted"
    log.promote("0001")
    second = write(log, "0002", promoted=False, verdict="held: worse than before")
    assert log.held(second) == "held: worse than before"
    log.promote("0002")
    assert log.held(second) is None
    log.promote("0001")
    log.withdraw(
        Withdrawal(version="0002", fallback="0001", window="w", sequence=7, cases=200, at=1.8e9, verdict="rolled back")
    )
    assert log.held(second) == "rolled back"
    log.set_pin(pin("0001"))
    assert log.held(second) == pin("0001").sentence


def test_what_a_killed_export_left_is_removed_after_an_hour(log: BundleLog, tmp_path: Path) -> None:
    write(log, "0001")
    log.store.write("bundles/ruin/index.faiss", b"half")
    log.store.write("bundles/ruin/items.parquet", b"half")
    log.retire()
    assert log.store.exists("bundles/ruin")
    old = time.time() - 3700
    os.utime(tmp_path / "bundles/ruin/index.faiss", (old, old))
    log.retire()
    assert log.store.exists("bundles/ruin/items.parquet")
    os.utime(tmp_path / "bundles/ruin/items.parquet", (old, old))
    for file in ("index.faiss", "MANIFEST.json"):
        os.utime(tmp_path / "bundles/0001" / file, (old, old))
    left, written = (new_draft(tmp_path / "bundles/0001/vectors.npy") for _ in range(2))
    os.utime(left, (old, old))
    log.retire()
    assert not log.store.exists("bundles/ruin")
    assert log.versions() == ["0001"]
    assert (left.exists(), written.exists()) == (False, True)
