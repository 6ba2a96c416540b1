"""The check of a cluster, as far as it goes without one: `make cluster-check` is its own test."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deploy.cluster_check.checks import OPTIONAL, Checks, needed_series, parts, unseen
from deploy.cluster_check.kubectl import ClusterError, Kubectl
from deploy.cluster_check.pods import doomed, restarts
from tests.deploy.support import KUBERNETES, ROOT, needs_kubectl, resources, with_components
from tests.deploy.test_monitoring import exposed
from tests.ports import free_port

pytestmark = needs_kubectl


def test_without_a_context_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.cluster_check"]
    environment = os.environ | {"KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cluster-check: there is no current kube context: `kind create cluster` makes one\n"


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(config))
    kubectl = ["kubectl", "config"]
    subprocess.run([*kubectl, "set-cluster", "gone", "--server=http://127.0.0.1:9"], check=True, capture_output=True)
    subprocess.run([*kubectl, "set-context", "old", "--cluster=gone"], check=True, capture_output=True)
    subprocess.run([*kubectl, "use-context", "old"], check=True, capture_output=True)
    with pytest.raises(ClusterError, match=r"kubectl get --raw /readyz.*127\.0\.0\.1:9"):
        Kubectl().context()


def test_what_prometheus_must_have_are_metrics_of_the_processes() -> None:
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""], "info": ["_info"]}
    known = {one.name + end for registry in exposed() for one in registry.collect() for end in endings[one.type]}
    assert needed_series() <= known
    assert {"weir_recall_model", "weir_pipeline_job_state", "process_resident_memory_bytes"} <= needed_series()


def test_series_are_asked_for_where_their_part_is_in_the_overlay(tmp_path: Path) -> None:
    kind = parts(resources(KUBERNETES / "overlays/kind"))
    assert kind == {"attribution", "variants", "stream"}
    assert {name.rpartition("_")[0] for name in needed_series() - needed_series(kind)} == {
        "weir_history_follower_errors",
        "weir_history_follower_loads",
    }
    base = resources(with_components([], tmp_path / "base"))
    assert parts(base) == set()
    assert parts(resources(with_components(["redis-follower"], tmp_path / "more"))) == {"redis-follower"}
    left = needed_series(parts(base))
    assert {"weir_recall_model", "weir_pipeline_events_total", "weir_trainer_window_sequence"} <= left
    for part in OPTIONAL:
        assert needed_series({part}) > left, f"{part} has series of its own"


def test_a_stopped_variant_is_a_part_of_nothing(tmp_path: Path) -> None:
    """A component that is not named in the overlay makes no series needed, whatever the settings say."""
    found = [each for each in resources(KUBERNETES / "overlays/kind") if "variant" not in each["metadata"]["name"]]
    assert parts(found) == {"attribution", "stream"}


def pod(state: dict[str, Any], restarts: int = 0, **more: Any) -> dict[str, Any]:
    """A pod as the API has it, of one container in a state."""
    status = {"containerStatuses": [{"name": "serving", "restartCount": restarts, "state": state}], **more}
    return {"metadata": {"name": "weir-serving-1", "uid": "1"}, "status": status}


def waiting(reason: str, restarts: int = 0) -> dict[str, Any]:
    return pod({"waiting": {"reason": reason, "message": "because"}}, restarts)


def unplaced(seconds: float) -> dict[str, Any]:
    since = (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    found = pod({}, conditions=[placed | {"lastTransitionTime": since}])
    del found["status"]["containerStatuses"]
    return found


@pytest.mark.parametrize(
    "reason", ["ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"]
)
def test_a_pod_that_no_wait_helps_is_named_with_its_reason(reason: str) -> None:
    assert doomed([waiting(reason)], {}) == [f"pod weir-serving-1: container serving cannot start: {reason}: because"]


def test_what_may_pass_is_waited_for() -> None:
    running, starting = pod({"running": {}}), waiting("ContainerCreating")
    ending = waiting("ErrImagePull")
    ending["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    crashed = waiting("CrashLoopBackOff", 9)
    assert doomed([running, starting, ending, crashed, unplaced(10)], restarts([crashed])) == []
    assert doomed([waiting("CrashLoopBackOff", 4)], {}) == []
    assert len(doomed([waiting("CrashLoopBackOff", 5)], {})) == 1
    assert len(doomed([waiting("CrashLoopBackOff", 14)], restarts([crashed]))) == 1
    assert doomed([unplaced(90)], {}) == ["pod weir-serving-1: no node takes it: 0/1 nodes"]


def test_the_wait_for_pods_ends_at_once_and_says_where_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of kubectl: no cluster can be had here."""
    (tmp_path / "pods").write_text(json.dumps({"items": [waiting("ImagePullBackOff")]}))
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--output=name*) echo deployment.apps/weir-serving ;;'
        f" *pods*) cat {tmp_path}/pods ;; *) echo 'timed out waiting' >&2; exit 1 ;; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    started = time.monotonic()
    with pytest.raises(ClusterError, match=r"(?s)docs/deploy\.md#a-pod.*weir-serving-1.*ImagePullBackOff"):
        Checks(Kubectl(), patience=900).pods_are_ready()
    assert time.monotonic() - started < 60


def test_a_wait_ends_and_says_what_is_missing() -> None:
    with pytest.raises(ClusterError, match="the moon is not full, after 0 s"):
        Checks(Kubectl(), patience=0.0).wait(lambda: False, lambda: "the moon is not full")


def test_a_page_that_does_not_answer_is_named() -> None:
    with pytest.raises(ClusterError, match="the page does not answer"):
        unseen(f"127.0.0.1:{free_port()}")
