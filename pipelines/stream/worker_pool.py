"""Worker pool: starts Beam Python workers on request, ``python -m weir.pipelines.stream.worker_pool [HOST:PORT]``.

It serves Beam's ``--environment_type=EXTERNAL`` in place of Beam's own pool. Beam's pool listens on all interfaces,
though its clients can run code; starts an interpreter per worker, which takes seconds to import Beam and the pipeline;
and blocks workers that print much. Here workers are forked from a process that has imported both, so that a job
recovers fast from a lost worker. Workers end with the pool.
"""

import logging
import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Final

import grpc
from apache_beam.portability.api import beam_fn_api_pb2 as api
from apache_beam.portability.api import beam_fn_api_pb2_grpc

from weir.pipelines.stream.worker import set_up_logging, work

__all__ = ["ADDRESS", "WorkerPool", "serve"]

ADDRESS: Final = "127.0.0.1:50000"
_PRELOADED: Final = ["weir.pipelines.stream.worker", "weir.pipelines.transforms.chain"]
_GRACE_SECONDS: Final = 5
_CALLS: Final = 16
"""Number of workers that can be started or stopped at once."""

_log = logging.getLogger(__name__)


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """The gRPC service that Flink calls; workers are known by the id that Flink gives them."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._lock = threading.Lock()
        self._workers: dict[str, BaseProcess] = {}

    def StartWorker(  # noqa: N802 - the name of the call
        self, request: api.StartWorkerRequest, _context: grpc.ServicerContext
    ) -> api.StartWorkerResponse:
        """Start a worker for the control endpoint of the request."""
        arguments = (request.control_endpoint.url, request.worker_id)
        worker = self._context.Process(target=work, args=arguments, daemon=True)
        with self._lock:
            worker.start()
            self._workers[request.worker_id] = worker
        _log.info("worker %s started, process %s", request.worker_id, worker.pid)
        return api.StartWorkerResponse()

    def StopWorker(  # noqa: N802 - the name of the call
        self, request: api.StopWorkerRequest, _context: grpc.ServicerContext
    ) -> api.StopWorkerResponse:
        """Stop a worker; an unknown worker counts as stopped."""
        with self._lock:
            worker = self._workers.pop(request.worker_id, None)
        if worker is not None:
            worker.terminate()
            worker.join(_GRACE_SECONDS)
            worker.kill()
            _log.info("worker %s stopped", request.worker_id)
        return api.StopWorkerResponse()


def serve(address: str = ADDRESS) -> None:
    """Serve a pool at ``HOST:PORT`` without end; raises `RuntimeError` if the port is taken."""
    # Allow Flink's pings on its open channel between jobs.
    options = [("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(_CALLS), options=options)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(WorkerPool(), server)
    server.add_insecure_port(address)
    server.start()
    _log.info("the worker pool listens on %s", address)
    server.wait_for_termination()


if __name__ == "__main__":
    set_up_logging()
    serve(*sys.argv[1:])
