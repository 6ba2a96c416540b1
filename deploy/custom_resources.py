"""Checks the resources of operators against the operators' own types: `custom_resources.py FOLDER FILE...`.

FOLDER holds the npm package that is generated from the sources of the Prometheus operator: its validators know what
values are allowed, and TypeScript, given its declarations, knows the fields. In its folder ``crds`` are the definitions
of the resources of Flink's and Strimzi's operators (operators.sh): schemas of JSON.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

_GROUP = "monitoring.coreos.com/v1"
_MODULE = f"@kubernetes-models/prometheus-operator/{_GROUP}"
_OPERATORS = ("flink.apache.org/", "kafka.strimzi.io/")

Resource = dict[str, Any]


def main(folder: Path, files: list[Path]) -> int:
    """Check every custom resource of the files; 0 if there are any and all are valid."""
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    ours = [each for each in found if each["apiVersion"] == _GROUP]
    others = [each for each in found if each["apiVersion"].startswith(_OPERATORS)]
    if not ours or not others:
        sys.stderr.write(f"there is no resource of {_GROUP if not ours else ' and '.join(_OPERATORS)}\n")
        return 1
    if status := _compiled(folder, ours):
        return status
    if not (crds := folder / "crds").is_dir():
        sys.stdout.write("not checked, there is no Maven to fetch their definitions: " + _names(others) + "\n")
        others = []
    problems = [problem for each in others for problem in _problems(each, crds)]
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    if not problems:
        sys.stdout.write(f"valid: {_names([*ours, *others])}\n")
    return bool(problems)


def _names(found: list[Resource]) -> str:
    return ", ".join(sorted(f"{each['kind']} {each['metadata']['name']}" for each in found))


def _problems(resource: Resource, crds: Path) -> list[str]:
    group, _, version = resource["apiVersion"].partition("/")
    for path in crds.glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, resource["kind"]):
            [schema] = [one["schema"]["openAPIV3Schema"] for one in spec["versions"] if one["name"] == version]
            schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
            errors = Draft202012Validator(_closed(schema)).iter_errors(resource)
            return [f"{resource['kind']}: {error.json_path}: {error.message}" for error in errors]
    return [f"{resource['kind']}: no definition of {resource['apiVersion']}"]


def _closed(schema: Any) -> Any:
    """Return a schema that refuses fields which it does not name, as strict validation does."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    return closed


def _compiled(folder: Path, found: list[Resource]) -> int:
    source = folder / "check.ts"
    source.write_text(_program(found))
    compiler = ["node_modules/.bin/tsc", "--strict", "--skipLibCheck", "--target", "es2022"]
    module = ["--module", "nodenext", "--moduleResolution", "nodenext"]
    for command in ([*compiler, *module, source.name], ["node", "check.js"]):
        if status := subprocess.run(command, cwd=folder, check=False).returncode:
            return status
    return 0


def _program(found: list[Resource]) -> str:
    kinds = sorted({str(each["kind"]) for each in found})
    lines = [f'import {{ {", ".join(f"{kind}, I{kind}" for kind in kinds)} }} from "{_MODULE}";']
    for number, each in enumerate(found):
        lines.append(f"const r{number}: I{each['kind']} = {json.dumps(each)};")
        lines.append(f"new {each['kind']}(r{number}).validate();")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
