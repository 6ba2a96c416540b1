"""Checks the resources of the Prometheus operator against its own types: `custom_resources.py FOLDER FILE...`.

FOLDER holds the npm package that is generated from the operator's sources. Its validators know what values are allowed,
and TypeScript, given its declarations, knows the fields.
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml

_GROUP = "monitoring.coreos.com/v1"
_MODULE = f"@kubernetes-models/prometheus-operator/{_GROUP}"


def main(folder: Path, files: list[Path]) -> int:
    """Check every custom resource of the files; 0 if there are any and all are valid."""
    found = [each for file in files for each in yaml.safe_load_all(file.read_text()) if each["apiVersion"] == _GROUP]
    if not found:
        sys.stderr.write(f"there is no resource of {_GROUP}\n")
        return 1
    source = folder / "check.ts"
    source.write_text(_program(found))
    compiler = ["node_modules/.bin/tsc", "--strict", "--skipLibCheck", "--target", "es2022"]
    module = ["--module", "nodenext", "--moduleResolution", "nodenext"]
    for command in ([*compiler, *module, source.name], ["node", "check.js"]):
        if status := subprocess.run(command, cwd=folder, check=False).returncode:
            return status
    names = ", ".join(sorted(f"{each['kind']} {each['metadata']['name']}" for each in found))
    sys.stdout.write(f"valid: {names}\n")
    return 0


def _program(found: list[dict[str, object]]) -> str:
    kinds = sorted({str(each["kind"]) for each in found})
    lines = [f'import {{ {", ".join(f"{kind}, I{kind}" for kind in kinds)} }} from "{_MODULE}";']
    for number, each in enumerate(found):
        lines.append(f"const r{number}: I{each['kind']} = {json.dumps(each)};")
        lines.append(f"new {each['kind']}(r{number}).validate();")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
