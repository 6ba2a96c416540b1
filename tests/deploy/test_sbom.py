"""The bill of materials, and which licences it refuses; `make sbom` makes the real one."""

import tomllib
from typing import Any

import pytest

from deploy.sbom import of_packages, refused
from tests.deploy.support import DEPLOY

RULES = tomllib.loads((DEPLOY / "licences.toml").read_text())


def component(name: str, *licences: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "bom-ref": f"{name}==1.0", "licenses": list(licences)}


def bill(*components: dict[str, Any], dependencies: dict[str, list[str]] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": list(components),
        "dependencies": [{"ref": ref, "dependsOn": needed} for ref, needed in (dependencies or {}).items()],
    }


@pytest.mark.parametrize(
    "licences",
    [
        ({"license": {"id": "MIT"}},),
        ({"expression": "BSD-3-Clause AND (0BSD OR MIT) AND Apache-2.0 WITH LLVM-exception"},),
        ({"license": {"id": "MIT"}}, {"license": {"name": "License :: OSI Approved :: BSD License"}}),
    ],
)
def test_permissive_licences_are_allowed(licences: tuple[dict[str, Any], ...]) -> None:
    assert refused(bill(component("numpy", *licences)), RULES) == []


@pytest.mark.parametrize(
    ("licences", "said"),
    [
        ((), "names no licence"),
        (({"license": {"id": "GPL-3.0-only"}},), "GPL-3.0-only"),
        (({"license": {"id": "MIT"}}, {"license": {"name": "Proprietary"}}), "MIT, Proprietary"),
        (
            ({"expression": "MIT AND (Apache-2.0 WITH Classpath-exception-2.0)"},),
            "Apache-2.0, Classpath-exception-2.0, MIT",
        ),
    ],
)
def test_others_are_named_with_their_package(licences: tuple[dict[str, Any], ...], said: str) -> None:
    assert refused(bill(component("good", {"license": {"id": "MIT"}}), component("Odd_One", *licences)), RULES) == [
        f"Odd_One 1.0: {said}"
    ]


def test_what_was_read_by_a_person_is_allowed() -> None:
    """Only packages by name: another package of the same licence is refused."""
    proprietary = {"license": {"name": "License :: Other/Proprietary License"}}
    assert refused(bill(component("nvidia-cublas", proprietary), component("protobuf")), RULES) == []
    assert refused(bill(component("nvidiaish", proprietary)), RULES) != []


def test_a_bill_of_some_packages_names_no_other() -> None:
    whole = bill(
        component("Jinja2"),
        component("pytest"),
        component("MarkupSafe"),
        dependencies={"root": ["Jinja2==1.0", "pytest==1.0"], "Jinja2==1.0": ["MarkupSafe==1.0"], "pytest==1.0": []},
    )
    made = of_packages(whole, {"jinja2", "markupsafe"})
    assert [each["name"] for each in made["components"]] == ["Jinja2", "MarkupSafe"]
    assert made["dependencies"] == [
        {"ref": "root", "dependsOn": ["Jinja2==1.0"]},
        {"ref": "Jinja2==1.0", "dependsOn": ["MarkupSafe==1.0"]},
    ]
