"""Apply the overlay of a single node to the current kube context, and prove it: ``python -m deploy.cluster_check``.

Images must be there, or the cluster must be able to pull them (docs/deploy.md). What is applied stays; `kubectl delete
namespace weir` removes it.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from deploy.cluster_check.checks import Checks, parts
from deploy.cluster_check.kubectl import Kubectl
from weir.contracts import UserError

__all__ = ["app"]

_OVERLAY = Path(__file__).parents[1] / "kubernetes/overlays/kind"

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)


@app.command()
def check(
    *,
    overlay: Annotated[Path, typer.Option(help="Folder of the overlay.")] = _OVERLAY,
    apply: Annotated[bool, typer.Option(help="Apply the overlay first.")] = True,
    alert: Annotated[bool, typer.Option(help="Let an alert fire and resolve: six minutes.")] = True,
    patience: Annotated[float, typer.Option(min=1, help="Longest wait of each check, seconds.")] = 900.0,
) -> None:
    """Run the checks one after the other; the first that fails ends it with status 1."""
    kubectl = Kubectl()
    try:
        _say(f"context {kubectl.context()}")
        checks = Checks(kubectl, patience, frozenset(parts(kubectl.rendered(overlay))))
        if apply:
            _say(_applied(kubectl, overlay))
        steps: list[Callable[[], str]] = [
            checks.pods_are_ready,
            checks.events_are_answered,
            checks.prometheus_has_all_series,
            checks.the_page_shows_every_stage,
        ]
        for step in [*steps, *([checks.an_alert_fires_and_resolves] if alert else [])]:
            _say(step())
    except UserError as error:
        typer.echo(f"cluster-check: {error}", err=True)
        sys.exit(1)


def _applied(kubectl: Kubectl, overlay: Path) -> str:
    lines = kubectl("apply", "--kustomize", str(overlay)).splitlines()
    changed = sum(not line.endswith("unchanged") for line in lines)
    return f"applied {overlay.name}: {changed} of {len(lines)} resources are new or changed"


def _say(text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {text}")


if __name__ == "__main__":
    app()
