"""Every file of a store is checked, and what is at fault is named."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.contracts.whole_store import write_whole_store
from weir.contracts import BundleLog, CommitLog, SourceSpan, Store, WindowLog
from weir.contracts.verification import Finding, Kind, verify


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_store(tmp_path_factory.mktemp("verification"))


def findings(folder: Path, *, quick: bool = False) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.name) for finding in verify(Store(str(folder)), quick=quick).findings]


def files(folder: Path) -> list[str]:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if not name.endswith(".lock"))


def test_a_whole_store_has_no_finding_and_every_file_is_counted(whole: Path) -> None:
    told: list[tuple[int, int]] = []
    report = verify(Store(str(whole)), progress=lambda done, total: told.append((done, total)))
    assert report.findings == []
    assert report.files == len(files(whole)) == told[-1][0] == told[-1][1]
    assert report.bytes == sum((whole / name).stat().st_size for name in files(whole))
    assert verify(Store(str(whole / "nothing"))).files == 0


def test_every_altered_file_is_named_and_the_quick_look_sees_what_is_cut(whole: Path) -> None:
    rng = random.Random(3)
    for name in files(whole):
        path = whole / name
        data = path.read_bytes()
        altered = bytearray(data)
        altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        if name == "STORE.json":
            with pytest.raises(Exception, match=r"STORE\.json"):
                verify(Store(str(whole)))
        else:
            assert (Kind.DAMAGED, name) in findings(whole)
        path.write_bytes(data[:-1])
        if name != "STORE.json":
            assert (Kind.DAMAGED, name) in findings(whole, quick=True)
        path.write_bytes(data)
    assert findings(whole) == []


def test_every_missing_file_is_named(whole: Path) -> None:
    # A hint, and folders that then look left by killed processes; `verify` refuses a store without its format.
    unfinished = ("MANIFEST.json", "CHECKPOINT.json", "commits/HEAD", "STORE.json")
    for name in files(whole):
        if name.endswith(unfinished) and BundleLog(Store(str(whole))).current() not in name.split("/"):
            continue
        path = whole / name
        data = path.read_bytes()
        path.unlink()
        assert (Kind.MISSING, name) in findings(whole), name
        path.write_bytes(data)
    assert findings(whole) == []


def test_damage_in_one_commit_does_not_hide_that_in_another(whole: Path) -> None:
    names = [CommitLog.name(1), CommitLog.name(3)]
    kept = [(whole / name).read_bytes() for name in names]
    (whole / names[0]).write_bytes(kept[0][:-3])
    (whole / names[1]).unlink()
    found = findings(whole)
    assert (Kind.DAMAGED, names[0]) in found
    assert (Kind.MISSING, names[1]) in found
    for name, data in zip(names, kept, strict=True):
        (whole / name).write_bytes(data)


def test_what_nothing_names_is_foreign_once_it_is_old(whole: Path) -> None:
    path = next(whole.glob("windows/*")) / "f00/examples-00000.parquet"
    path.parent.mkdir()
    path.write_bytes(b"left over")
    assert findings(whole) == []
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    name = str(path.relative_to(whole))
    assert verify(Store(str(whole))).findings == [Finding(Kind.FOREIGN, name, "no commit or manifest names it")]
    path.unlink()
    path.parent.rmdir()


def test_files_of_people_and_of_replays_are_not_foreign(whole: Path) -> None:
    names = ["weir.yaml", "generated.jsonl", "log/a/b.jsonl", "logs/server.log", "state/demo", "state/settings.json"]
    for name in [*names, "state/replay.json", "state/runs/f00/outcome.json"]:
        path = whole / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
        os.utime(path, (time.time() - 7200,) * 2)
    assert findings(whole) == []


def test_a_commit_in_the_place_of_head_is_named(whole: Path) -> None:
    head = (whole / "commits/HEAD").read_bytes()
    for number in range(5):
        (whole / "commits/HEAD").write_bytes((whole / CommitLog.name(number)).read_bytes())
        assert findings(whole) == [(Kind.DAMAGED, "commits/HEAD")]
    (whole / "commits/HEAD").write_bytes(head)


def test_a_log_without_its_newest_commits_is_named_by_what_was_trained_on_them(whole: Path) -> None:
    store, kept = Store(str(whole)), dict[str, bytes]()
    checkpoints = {name for name in files(whole) if name.endswith("CHECKPOINT.json")}
    newest = BundleLog(store).manifests()[-1].version
    for name in ["commits/HEAD", *(CommitLog.name(number) for number in (4, 3))]:
        kept[name] = (whole / name).read_bytes()
        (whole / name).unlink()
    found = {name for kind, name in findings(whole) if kind is Kind.FOREIGN}
    assert found & checkpoints
    assert f"bundles/{newest}/MANIFEST.json" in found
    # Others are committed with these numbers.
    for _ in range(2):
        WindowLog(store).commit(sources={"another": SourceSpan(start=0, stop=0, resume=0, size=0)})
    assert {name for kind, name in findings(whole) if kind is Kind.FOREIGN} >= found
    for name, data in kept.items():
        (whole / name).write_bytes(data)
    assert findings(whole) == []
