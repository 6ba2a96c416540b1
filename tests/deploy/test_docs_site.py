import json
from pathlib import Path

import pytest
from packaging.version import Version

from deploy.docs_site import add_version


def built(folder: Path, text: str) -> Path:
    (folder / "api").mkdir(parents=True)
    (folder / "index.html").write_text(text)
    (folder / "api" / "weir.html").write_text(text)
    return folder


def test_versions_lie_side_by_side_and_the_newest_is_shown(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for number, version in enumerate(("0.9.0", "0.10.0", "0.2.1", "0.9.1")):
        add_version(built(tmp_path / str(number), version), site, Version(version))
    listed = json.loads((site / "versions.json").read_text())
    assert [(each["version"], each["title"], each["aliases"]) for each in listed] == [
        ("0.10", "0.10.0", ["latest"]),
        ("0.9", "0.9.1", []),
        ("0.2", "0.2.1", []),
    ]
    assert [(site / each["version"] / "api" / "weir.html").read_text() for each in listed] == [
        "0.10.0",
        "0.9.1",
        "0.2.1",
    ]
    assert 'url=0.10/index.html"' in (site / "index.html").read_text()


def test_pages_that_a_patch_release_drops_are_gone_and_an_older_patch_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    first = built(tmp_path / "first", "0.1.0")
    (first / "dropped.html").write_text("")
    add_version(first, site, Version("0.1.0"))
    second = built(tmp_path / "second", "0.1.1")
    add_version(second, site, Version("0.1.1"))
    assert not (site / "0.1" / "dropped.html").exists()
    with pytest.raises(ValueError, match=r"newer than 0\.1\.0"):
        add_version(first, site, Version("0.1.0"))
    assert (site / "0.1" / "index.html").read_text() == "0.1.1"
