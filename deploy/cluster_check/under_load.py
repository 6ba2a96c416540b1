"""A pod that calls the servers while something happens to the cluster."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deploy.cluster_check.kubectl import ClusterError, Kubectl

__all__ = ["Load", "loaded"]

_POD: Final = "weir-load"
_SOURCE: Final = Path(__file__).with_name("load.py")


@dataclass
class Load:
    """What came of the calls, once they have ended."""

    answered: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    slowest_seconds: float = 0.0

    def __str__(self) -> str:
        why = "".join(f"; {count} x {kind}" for kind, count in self.failed.items())
        calls = self.answered + sum(self.failed.values())
        return (
            f"{sum(self.failed.values())} of {calls:,} calls failed, the slowest took {self.slowest_seconds:.2f} s{why}"
        )


@contextmanager
def loaded(kubectl: Kubectl) -> Iterator[Load]:
    """Call the servers while inside; the result is filled in when it is left."""
    image = kubectl("get", "deployment/weir-serving", "--output=jsonpath={.spec.template.spec.containers[0].image}")
    kubectl("apply", "--filename=-", text=json.dumps(_pod(image)))
    load = Load()
    try:
        kubectl("wait", f"pod/{_POD}", "--for=condition=Ready", "--timeout=120s")
        command = ["kubectl", "--namespace", kubectl.namespace, "exec", "--stdin", _POD, "--", "python", "-c"]
        calls = subprocess.Popen(
            [*command, _SOURCE.read_text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert calls.stdout is not None  # noqa: S101 - it is a pipe
        calls.stdout.readline()
        try:
            yield load
        finally:
            said, problem = calls.communicate("")
        if calls.returncode != 0:
            raise ClusterError(f"the calls ended with an error: {problem.strip()[-1000:]}")
        vars(load).update(json.loads(said.splitlines()[-1]))
    finally:
        kubectl("delete", "pod", _POD, "--grace-period=0", "--force", "--ignore-not-found")


def _pod(image: str) -> dict[str, Any]:
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    user = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    size = {"cpu": "25m", "memory": "192Mi"}
    container = {
        "name": "load",
        "image": image,
        "command": ["sleep", "infinity"],
        "securityContext": confined,
        "resources": {"requests": size, "limits": {"cpu": "1", "memory": "512Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # The label lets it call (base/serving/networkpolicy.yaml).
        "metadata": {"name": _POD, "labels": {"weir-client": "true"}},
        "spec": {"containers": [container], "securityContext": user, "automountServiceAccountToken": False},
    }
