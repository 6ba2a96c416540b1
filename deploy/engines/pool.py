"""The pool that starts Beam's Python workers when Flink asks for them."""

import os
import sys

from deploy.engines.processes import Service, is_listening
from deploy.engines.settings import HOST, ROOT, EngineSettings

__all__ = ["worker_pool"]


def worker_pool(settings: EngineSettings) -> Service:
    """Return the pool; its workers have this interpreter and this checkout of weir."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Service(
        name="worker-pool",
        folder=settings.folder,
        command=[sys.executable, "-m", "weir.pipelines.stream.worker_pool", f"{HOST}:{settings.pool_port}"],
        ports={settings.pool_port: "ENGINES_POOL_PORT"},
        answers=lambda: is_listening(settings.pool_port),
        environment={
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
