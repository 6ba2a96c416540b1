"""The bill of materials of what users install, and its licences: ``python -m deploy.sbom FILE``, in CycloneDX.

It names what the extras in `SHIPPED` bring, in the versions that are installed beside this Python, and fails where a
licence is not among those of ``licences.toml``. cyclonedx-py reads the metadata of the packages.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

__all__ = ["main", "of_packages", "refused"]

ROOT: Final = Path(__file__).parents[1]
SHIPPED: Final = ("all", "avro", "bench", "redis", "s3")
"""Not `gcs`, `azure` and `gpu`: the environment of developers does not have them."""
_BESIDE: Final = Path(sys.executable).parent


def main(file: Path) -> None:
    """Write the bill; raises `SystemExit` with the licences that are not allowed."""
    bill = of_packages(_environment(), _shipped())
    text = json.dumps(bill, indent=1, sort_keys=True)
    if (fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ValueError(f"the bill is no valid CycloneDX: {fault}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    rules = tomllib.loads((ROOT / "deploy" / "licences.toml").read_text())
    if problems := refused(bill, rules):
        raise SystemExit("not in deploy/licences.toml:\n" + "\n".join(problems))
    sys.stdout.write(f"{file}: {len(bill['components'])} packages, all of allowed licences\n")


def of_packages(bill: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    """Return a bill of these packages only, and of their dependencies among each other."""
    components = [each for each in bill["components"] if _normal(each["name"]) in names]
    known = {each["bom-ref"] for each in components} | {bill["metadata"]["component"]["bom-ref"]}
    dependencies = [
        {**each, **({"dependsOn": [ref for ref in each["dependsOn"] if ref in known]} if "dependsOn" in each else {})}
        for each in bill["dependencies"]
        if each["ref"] in known
    ]
    return {**bill, "components": components, "dependencies": dependencies}


def refused(bill: Mapping[str, Any], rules: Mapping[str, Any]) -> list[str]:
    """Return a line for each package that has a licence which the rules do not allow, or none."""
    prefixes = tuple(rules["reviewed-prefixes"])
    lines = []
    for component in bill["components"]:
        name = _normal(component["name"])
        if name in rules["reviewed"] or name.startswith(prefixes):
            continue
        licences = sorted(set(_licences(component)))
        if not licences or not set(licences) <= set(rules["allowed"]):
            lines.append(f"{component['name']} {component['version']}: {', '.join(licences) or 'names no licence'}")
    return lines


def _licences(component: Mapping[str, Any]) -> Iterator[str]:
    """Yield every licence that a component names; of several to choose from each counts."""
    for each in component.get("licenses", ()):
        if "expression" in each:
            words = re.split(r"[\s()]+", each["expression"])
            yield from (word for word in words if word not in ("", "AND", "OR", "WITH"))
        else:
            yield each["license"].get("id") or each["license"]["name"]


def _environment() -> dict[str, Any]:
    """Return the bill of all that is installed beside this Python."""
    command = [str(_BESIDE / "cyclonedx-py"), "environment", sys.executable, "--pyproject", "pyproject.toml"]
    # What is left of it is validated at the end.
    command += ["--no-validate", "--output-reproducible", "--spec-version", "1.6"]
    made: dict[str, Any] = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    return made


def _shipped() -> set[str]:
    """Return the names of the packages that the lock holds for the extras of users."""
    command = [str(_BESIDE / "uv"), "export", "--quiet", "--frozen", "--no-emit-project", "--no-hashes"]
    command += ["--no-annotate", "--no-header", *(f"--extra={extra}" for extra in SHIPPED)]
    lines = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {_normal(line.partition("==")[0]) for line in lines.splitlines()}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
