"""Write what is made from code or from other files: ``python -m deploy.monitoring.build`` (``--check``: say if stale).

The dashboards come from ``boards/``; the PrometheusRule resource holds the groups of ``rules/`` and ``alerts/``.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.monitoring.grafana import Board

__all__ = ["HERE", "files", "groups"]

HERE: Final = Path(__file__).parent
_RULE: Final = HERE.parent / "kubernetes/components/rules/prometheusrule.yaml"
_HEAD: Final = "# Made by `python -m deploy.monitoring.build` from deploy/monitoring/{rules,alerts}: change those.\n"


def groups(folder: Path = HERE) -> list[dict[str, Any]]:
    """Return the rule groups, recording rules first."""
    paths = [path for kind in ("rules", "alerts") for path in sorted((folder / kind).glob("*.yaml"))]
    return [group for path in paths for group in yaml.safe_load(path.read_text())["groups"]]


def files() -> dict[Path, str]:
    """Return what should be in each made file."""
    boards = {
        HERE / f"dashboards/{path.stem}.json": _dashboard(Board.model_validate(yaml.safe_load(path.read_text())))
        for path in sorted((HERE / "boards").glob("*.yaml"))
    }
    return boards | {_RULE: _HEAD + yaml.safe_dump(_prometheus_rule(), sort_keys=False, width=1000)}


def _dashboard(board: Board) -> str:
    return json.dumps(board.to_json(), indent=1) + "\n"


def _prometheus_rule() -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": "weir",
        "app.kubernetes.io/component": "rules",
        "app.kubernetes.io/part-of": "weir",
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "weir", "labels": labels},
        "spec": {"groups": groups()},
    }


def _main() -> None:
    made = files()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        sys.exit("".join(f"{path} is not current: python -m deploy.monitoring.build\n" for path in stale) or 0)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path])


if __name__ == "__main__":
    _main()
