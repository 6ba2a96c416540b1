"""The operations on a cluster, as far as they go without one: `docs/operations.md` says what was seen."""

import re
import subprocess
import sys

import pytest

from deploy.cluster_check.operations import _IN_ORDER, _KINDS, _USERS, OPERATIONS, Operations
from deploy.cluster_check.under_load import Load
from tests.deploy.support import KUBERNETES, ROOT, needs_kubectl, resources
from tests.deploy.test_kubernetes import workloads


def test_every_operation_exists_says_what_it_does_and_is_documented() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    for name in OPERATIONS:
        assert getattr(Operations, name).__doc__
        assert f"`{name}`" in page, name


def test_restore_copies_what_the_page_copies_in_its_order() -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    volume, bucket = (parts.replace("\\\n", "").split() for parts in re.findall(r"for part in ([^;]*); do", page))
    assert tuple(volume) == _IN_ORDER
    folders = [part for part in _IN_ORDER if "snapshot" not in part and not part.endswith(".json")]
    assert bucket == [part.removesuffix("/0*") for part in folders]


@needs_kubectl
def test_they_reach_every_pod_of_the_single_node() -> None:
    found = workloads(resources(KUBERNETES / "overlays/kind"))
    kinds = {each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] for each in found.values()}
    assert set(_KINDS) == kinds - {"prometheus"}
    volumes = {
        f"{each['kind'].lower()}/{name}"
        for name, each in found.items()
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if volume.get("persistentVolumeClaim", {}).get("claimName") == "weir-store"
    }
    assert set(_USERS) == volumes - {"deployment/weir-jobmanager"}


def test_an_unknown_one_is_refused() -> None:
    command = [sys.executable, "-m", "deploy.cluster_check.operations", "explode"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"operations: explode is none of {', '.join(OPERATIONS)}\n")


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(1200, {}, 0.5), "0 of 1,200 calls failed, the slowest took 0.50 s"),
        (Load(7, {"away": 3}, 2.0), "3 of 10 calls failed, the slowest took 2.00 s; 3 x away"),
    ],
)
def test_what_clients_saw_is_said(load: Load, words: str) -> None:
    assert str(load) == words
