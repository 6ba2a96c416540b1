"""The pages hold together: navigation, links to files, and a README that stays short."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MOST_WORDS = 670


def _files(entry: Any) -> list[str]:
    """Return the pages under an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [file for part in (entry.values() if isinstance(entry, dict) else entry) for file in _files(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(_files(navigation)) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_every_package_has_a_page_of_its_names() -> None:
    pages = [page.read_text() for page in (DOCS / "api").glob("*.md")]
    documented = {name for page in pages for name in re.findall(r"^::: (\S+)", page, flags=re.MULTILINE)}
    packages = {
        "weir",
        "weir.client",
        "weir.contracts",
        "weir.pipelines",
        "weir.serving",
        "weir.serving.monitor",
        "weir.sketches",
        "weir.trainer",
    }
    assert packages <= documented


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    missing = [name for name in re.findall(r"\btests/[\w./-]+\.py\b", text) if not (ROOT / name).exists()]
    defined = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing += [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in defined]
    assert missing == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS
