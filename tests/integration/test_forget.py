"""``weir forget`` beside a trainer, a server and a monitor: none stops, and the server knows nothing of the user."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.campaigns import real_store
from tests.campaigns.lives import ROOT
from tests.pipelines import aging, redacting
from tests.serving.process import ServerProcess
from tests.serving.support import histories_of
from weir.contracts import BundleLog, LogState, UserKeys, WindowLog, hash_id
from weir.serving.client import RetrievalClient, by_user
from weir.serving.monitor.results import recorded
from weir.trainer.train import train


def weir(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "weir", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def is_unknown(client: RetrievalClient, user: str) -> bool:
    return client.retrieve([by_user(user, 5)]).hits[0].fallback


def wait_for(client: RetrievalClient, user: str) -> None:
    ends = time.monotonic() + 20
    while not is_unknown(client, user):
        assert time.monotonic() < ends, f"{user} is still known"
        time.sleep(0.05)


def test_everybody_goes_on(tmp_path: Path) -> None:
    store = redacting.build(tmp_path, parts=2)
    train(store, real_store.TRAINER)
    with ServerProcess(store) as server, RetrievalClient(server.target, timeout=5) as client:
        server.said("serving bundle")
        real_store.measure(store, server.target)
        measured = len(recorded(store))
        assert not is_unknown(client, "user-1")
        done = weir("forget", "--store", store.url, "--user", "user-1", "--grace", "0s")
        assert done.returncode == 0, done.stderr
        assert "forgot 1 of 1 users" in done.stdout
        wait_for(client, "user-1")
        assert not is_unknown(client, "user-3")
        redacting.arrive(tmp_path, 2)
        redacting.run(tmp_path)
        real_store.measure(store, server.target)
        assert len(recorded(store)) > measured
        trained = train(store, real_store.TRAINER)
        last = WindowLog(store).committed()[-1].sequence
        current = BundleLog(store).current()
        assert current is not None
        assert BundleLog(store).manifest(current).trained_sequence == last
        assert trained.windows == len(WindowLog(store).committed()) - measured
        # Whoever starts now reads the files that are left.
        store.remove("checkpoints")
        assert train(store, real_store.TRAINER).windows == last + 1
        everybody = [redacting.user(number) for number in range(redacting.USERS)]
        many = tmp_path / "users.txt"
        many.write_text("\n".join(everybody))
        assert weir("forget", "--store", store.url, "--users", many, "--grace", "0s").returncode == 0
        for user in everybody:
            wait_for(client, user)
        server.said("serving bundle")
    absent = [word for user in everybody for word in ("--absent", user)]
    proof = weir("verify", "--store", store.url, *absent)
    assert proof.returncode == 0, proof.stdout
    assert LogState.open(store).histories.shards == {}
    keys = UserKeys(np.array([hash_id(user) for user in everybody], np.int64))
    items, _ = histories_of(store).look_up(keys, np.empty(0, np.int64))
    assert not items.any()
    assert aging.leftovers(store) == []
