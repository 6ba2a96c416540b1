"""kubectl, as the program that it is: the cluster is that of the current context."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import yaml

from weir.contracts import UserError

__all__ = ["ClusterError", "Kubectl"]

_FORWARDED: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class ClusterError(UserError):
    """The cluster cannot be reached, or is not as it should be."""


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl in a namespace; calls raise `ClusterError` with what it says."""

    namespace: str = "weir"

    def context(self) -> str:
        """Return the name of the current context, whose cluster answers."""
        try:
            name = self("config", "current-context").strip()
        except ClusterError as error:
            raise ClusterError("there is no current kube context: `kind create cluster` makes one") from error
        self("get", "--raw", "/readyz", "--request-timeout=10s")
        return name

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        """Return the output of a command; `text` is its standard input."""
        command = ["kubectl", "--namespace", self.namespace, *arguments]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise ClusterError("there is no kubectl") from None
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments[:4])}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def names(self, *kinds: str) -> list[str]:
        """Return the resources of these kinds, as ``kind/name``."""
        return self("get", ",".join(kinds), "--output=name").split()

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods, as the API has them."""
        return list(json.loads(self("get", "pods", "--output=json"))["items"])

    def rendered(self, overlay: Path) -> list[dict[str, Any]]:
        """Return the resources of an overlay."""
        return list(yaml.safe_load_all(self("kustomize", str(overlay))))

    @contextmanager
    def forwarded(self, resource: str, port: int) -> Iterator[str]:
        """Give the address at which a port of a resource's pod is reached from here, while inside."""
        command = ["kubectl", "--namespace", self.namespace, "port-forward", resource, f":{port}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            yield f"127.0.0.1:{_port(process, resource)}"
        finally:
            process.terminate()
            process.wait()


def _port(process: "subprocess.Popen[str]", resource: str) -> str:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if found := _FORWARDED.search(line):
            # Each connection adds a line, and a full pipe would stop it.
            threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
            return found[1]
    raise ClusterError(f"kubectl port-forward {resource}: {''.join(lines).strip()}")


def _drain(output: IO[str]) -> None:
    for _ in output:
        pass
