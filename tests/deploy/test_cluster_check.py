"""The check of a cluster, as far as it goes without one: `make cluster-check` is its own test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cluster_check.checks import Checks, needed_series, unseen
from deploy.cluster_check.kubectl import ClusterError, Kubectl
from tests.deploy.support import ROOT, needs_kubectl
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


def test_a_wait_ends_and_says_what_is_missing() -> None:
    with pytest.raises(ClusterError, match="the moon is not full, after 0 s"):
        Checks(Kubectl(), patience=0.0).wait(lambda: False, lambda: "the moon is not full")


def test_a_page_that_does_not_answer_is_named() -> None:
    with pytest.raises(ClusterError, match="the page does not answer"):
        unseen(f"127.0.0.1:{free_port()}")
