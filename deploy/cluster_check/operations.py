"""Operations on the single node, tried while clients call: ``python -m deploy.cluster_check.operations NAME``.

Each causes what it is named after, waits until all is well, and says what clients saw and how long it took
(docs/operations.md has the figures). Events must be coming: `make cluster-check` first.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final

import typer

from deploy.cluster_check.checks import Checks
from deploy.cluster_check.kubectl import ClusterError, Kubectl
from deploy.cluster_check.under_load import loaded
from weir.contracts import UserError

__all__ = ["OPERATIONS", "app"]

_STORE: Final = "/var/lib/weir/store"
_KINDS: Final = (
    "serving",
    "monitor",
    "trainer",
    "trainer-variant",
    "ingest",
    "taskmanager",
    "jobmanager",
    "kafka",
    "producer",
)
_USERS: Final = (
    "statefulset/weir-ingest",
    "deployment/weir-taskmanager",
    "statefulset/weir-trainer",
    "statefulset/weir-trainer-variant",
    "deployment/weir-serving",
    "deployment/weir-monitor",
)
"""What reads or writes the store; the JobManager, which has its volume, does neither."""
_FILL: Final = "dd if=/dev/zero bs=4k 2>/dev/null >> /var/lib/weir/filler || true"
_IN_ORDER: Final = (
    "commits/snapshot-*",
    "variants",
    "checkpoints",
    "bundles",
    "evaluations",
    "monitor",
    "served",
    "commits/0*",
    "histories",
    "windows",
    "dead-letters",
    "CLOCK.json",
    "SETTINGS.json",
    "STORE.json",
)
"""What a copy of a store needs, each before what it refers to (docs/deploy.md, Backup); globs expand at their turn."""

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)


class Operations:
    """What can be tried; each method is an operation."""

    def __init__(self, kubectl: Kubectl, patience: float) -> None:
        self.kubectl, self.checks = kubectl, Checks(kubectl, patience)

    def restart(self) -> None:
        """Restart all servers, one after the other."""
        with self._calls():
            self._rolled(
                "deployment/weir-serving", lambda: self.kubectl("rollout", "restart", "deployment/weir-serving")
            )

    def upgrade(self) -> None:
        """Change the images of servers and monitor, then of the pipeline, to the version in UPGRADE_TO."""
        version = os.environ.get("UPGRADE_TO")
        if version is None:
            raise ClusterError("name a version whose images the cluster has: UPGRADE_TO=0.1.1")
        with self._calls():
            before, started = self._commits(), time.monotonic()
            for name in ("serving", "monitor"):
                resource = f"deployment/weir-{name}"
                self._rolled(resource, partial(self._image, resource, "serving", version))
            # Workers and driver are of one version: stop the stream, replace both, start it.
            self.kubectl("scale", "statefulset/weir-ingest", "--replicas=0")
            self.kubectl("wait", "pod/weir-ingest-0", "--for=delete", "--timeout=120s")
            for name in ("deployment/weir-taskmanager", "statefulset/weir-ingest", "deployment/weir-producer"):
                self._image(name, "pipeline", version)
            self.kubectl("scale", "statefulset/weir-ingest", "--replicas=1")
            self.checks.pods_are_ready()
            self.checks.wait(partial(self._follows, before), "no commit follows")
            _say(f"all of {version} after {time.monotonic() - started:.0f} s, {self._commits() - before} commits later")
        self.verify()

    def kill(self) -> None:
        """Kill a pod of each kind without grace, one kind after the other."""
        for kind in _KINDS:
            with self._calls():
                before, started = self._commits(), time.monotonic()
                pod = self._pods(kind)[0]
                self.kubectl("delete", pod, "--grace-period=0", "--force")
                self.checks.wait(partial(self._follows, before), "no commit follows")
                committed = time.monotonic() - started
                self.checks.pods_are_ready()
                ready = time.monotonic() - started
                _say(f"{pod} killed: two more commits after {committed:.0f} s, all ready after {ready:.0f} s")

    def drain(self) -> None:
        """Drain the node, which leaves the last server where it is, and take it into service again."""
        [node] = self.kubectl("get", "nodes", "--output=jsonpath={.items[*].metadata.name}").split()
        with self._calls():
            started = time.monotonic()
            try:
                self.kubectl(
                    "drain",
                    node,
                    "--ignore-daemonsets",
                    "--delete-emptydir-data",
                    "--force",
                    "--timeout=45s",
                    "--pod-selector=app.kubernetes.io/part-of=weir",
                )
                _say("drained; nothing is left")
            except ClusterError as error:
                left = self._pods("serving", "--field-selector=status.phase=Running")
                _say(f"after 45 s {' '.join(left)} left on the node: {str(error).splitlines()[-1]}")
            self.kubectl("uncordon", node)
            self.checks.pods_are_ready()
            _say(f"all ready {time.monotonic() - started:.0f} s after the drain began")

    def scale(self) -> None:
        """Train in three pods, and in one again."""
        for count in (3, 1):
            with self._calls():
                started = time.monotonic()
                self.kubectl("scale", "statefulset/weir-trainer", f"--replicas={count}")
                self.checks.pods_are_ready()
                # Those before may have left one.
                trained = self._trained()
                self.checks.wait(partial(self._is_trained_after, trained), "no bundle follows")
                _say(f"{count} trainers: the next bundle after {time.monotonic() - started:.0f} s")

    def rollback(self) -> None:
        """Promote an older bundle, which pins it, and give the trainer its way again."""
        with self._calls():
            bundles = self._bundles()
            current = next(each["version"] for each in bundles if each["current"])
            # The oldest may be removed meanwhile.
            older = max(each["version"] for each in bundles if each["version"] < current)
            for arguments, wanted in (
                ([older, "--why", "tried"], lambda now: now == older),
                (["--unpin"], lambda now: now != older),
            ):
                started = time.monotonic()
                self.kubectl("exec", "weir-ingest-0", "--", "weir", "promote", *arguments)
                self.checks.wait(lambda wanted=wanted: wanted(self._served()), "servers do not follow")  # type: ignore[misc]
                seconds = time.monotonic() - started
                _say(f"weir promote {' '.join(arguments)}: served {self._served()} after {seconds:.0f} s")

    def fill(self) -> None:
        """Fill the volume of the store, and make room again after a minute."""
        free = int(self._shell("df --output=avail -B1M /var/lib/weir | tail -1"))
        if free > 4096:
            raise ClusterError(f"the volume has {free} MB free: this is for a volume of its own with less than 4 GB")
        with self._calls():
            self._shell(_FILL)
            before = self._commits()
            # What others remove meanwhile is filled, too.
            self._shell(f"for _ in $(seq 60); do {_FILL}; sleep 1; done")
            _say(f"full for a minute: {self._commits() - before} commits")
            self._shell("rm /var/lib/weir/filler")
            started, before = time.monotonic(), self._commits()
            self.checks.wait(partial(self._follows, before), "no commit follows")
            committed = time.monotonic() - started
            self.checks.pods_are_ready()
            _say(f"room again: two more commits after {committed:.0f} s")
        self.verify()

    def restore(self) -> None:
        """Copy the store while everything runs, lose it, and go on from the copy."""
        self._shell(
            f"rm -rf {_STORE}-copy && mkdir {_STORE}-copy && cd {_STORE} && for part in {shlex.join(_IN_ORDER)}; do"
            f" if ls -d $part > /dev/null 2>&1; then cp -r --parents $part {_STORE}-copy || exit; fi; done"
        )
        copied = self._commits(f"{_STORE}-copy")
        started = time.monotonic()
        replicas = {name: int(self.kubectl("get", name, "--output=jsonpath={.spec.replicas}")) for name in _USERS}
        for name in _USERS:
            self.kubectl("scale", name, "--replicas=0")
        self.checks.wait(lambda: not any(self._pods(name.split("weir-")[1]) for name in _USERS), "pods do not end")
        self.kubectl(
            "exec",
            "deployment/weir-jobmanager",
            "--container=jobmanager",
            "--",
            "sh",
            "-c",
            f"mv {_STORE} {_STORE}-lost && mv {_STORE}-copy {_STORE}",
        )
        for name, count in replicas.items():
            self.kubectl("scale", name, f"--replicas={count}")
        self.checks.pods_are_ready()
        self.checks.wait(partial(self._follows, copied), "no commit follows")
        _say(f"restored a copy with {copied} commits: two more after {time.monotonic() - started:.0f} s")
        self.verify()

    def verify(self) -> None:
        """Check every file of the store."""
        said = self.kubectl("exec", "weir-ingest-0", "--", "weir", "verify")
        _say(f"weir verify: {said.strip().splitlines()[-1]}")

    @contextmanager
    def _calls(self) -> Iterator[None]:
        with loaded(self.kubectl) as load:
            yield
            time.sleep(5)
        _say(f"{load}")

    def _rolled(self, name: str, action: Callable[[], object]) -> None:
        started = time.monotonic()
        action()
        self.kubectl("rollout", "status", name, f"--timeout={self.checks.patience:.0f}s")
        # The old ones still answer: what clients do when they are gone is seen after that.
        replicas = int(self.kubectl("get", name, "--output=jsonpath={.spec.replicas}"))
        self.checks.wait(lambda: len(self._pods(name.partition("weir-")[2])) == replicas, "the old pods do not end")
        _say(f"{name} rolled in {time.monotonic() - started:.0f} s")

    def _image(self, name: str, image: str, version: str) -> None:
        """Give the containers of a workload that have this image of weir's another version of it."""
        path = "--output=jsonpath={range .spec.template.spec.containers[*]}{.name}={.image} {end}"
        found = dict(pair.split("=", 1) for pair in self.kubectl("get", name, path).split())
        ours = {each: had for each, had in found.items() if had.split(":")[0].endswith(f"weir-{image}")}
        self.kubectl("set", "image", name, *(f"{each}={had.split(':')[0]}:{version}" for each, had in ours.items()))

    def _pods(self, component: str, *more: str) -> list[str]:
        selector = f"--selector=app.kubernetes.io/part-of=weir,app.kubernetes.io/component={component}"
        return self.kubectl("get", "pods", selector, "--output=name", *more).split()

    def _shell(self, script: str) -> str:
        return self.kubectl("exec", "weir-ingest-0", "--", "sh", "-c", script)

    def _commits(self, store: str = _STORE) -> int:
        """Return the number of the newest commit; -1 if no pod can be asked."""
        script = f"ls {store}/commits | grep -E '^[0-9]+' | sort | tail -1"
        for name in ("deployment/weir-monitor", "deployment/weir-serving", "deployment/weir-jobmanager"):
            try:
                return int(self.kubectl("exec", name, "--", "sh", "-c", script).split(".")[0])
            except (ClusterError, ValueError):
                continue
        return -1

    def _follows(self, before: int) -> bool:
        """Say whether there are two more commits: one may have been under way."""
        return self._commits() > before + 1

    def _is_trained_after(self, version: str) -> bool:
        """Say whether there is a bundle of two windows later: one may have been under way."""
        newest, known = (int(each.partition("-")[0]) for each in (self._trained(), version))
        return newest > known + 1

    def _trained(self) -> str:
        return str(self._bundles()[-1]["version"])

    def _served(self) -> str:
        script = (
            "from weir.serving.client import RetrievalClient; c = RetrievalClient('dns:///weir-serving:50051');"
            " print(c.info().bundle_version)"
        )
        return self.kubectl("exec", "deployment/weir-monitor", "--", "python", "-c", script).strip()

    def _bundles(self) -> list[dict[str, Any]]:
        """Return the bundles, oldest first."""
        said = self.kubectl("exec", "weir-ingest-0", "--", "weir", "inspect", "bundles", "--json")
        return list(json.loads(said))


OPERATIONS: Final = ("restart", "kill", "drain", "scale", "rollback", "upgrade", "fill", "restore", "verify")


@app.command()
def operate(
    names: Annotated[list[str], typer.Argument(help=", ".join(OPERATIONS))],
    patience: Annotated[float, typer.Option(min=1, help="Longest wait, seconds.")] = 600.0,
) -> None:
    """Try operations, one after the other."""
    operations = Operations(Kubectl(), patience)
    try:
        for name in names:
            if name not in OPERATIONS:
                raise ClusterError(f"{name} is none of {', '.join(OPERATIONS)}")
            _say(f"{name}: {getattr(operations, name).__doc__}")
            getattr(operations, name)()
    except UserError as error:
        typer.echo(f"operations: {error}", err=True)
        sys.exit(1)


def _say(text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {text}")


if __name__ == "__main__":
    app()
