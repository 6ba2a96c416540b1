"""Process setup before a server starts: a check of FAISS's kernel, the limit of open files, and gRPC's log.

FAISS brings its own OpenBLAS, which picks a kernel for the processor when it is loaded. For a processor newer than this
OpenBLAS, that may be a kernel without AVX2, and searches get slower without any message.
"""

import logging
import resource
from pathlib import Path
from typing import Final

import faiss
import grpc.aio
from threadpoolctl import threadpool_info

__all__ = ["allow_files", "leave_out_departed", "warn_of_old_kernel"]


log = logging.getLogger(__name__)

_WITHOUT_AVX2: Final = frozenset(
    {
        *("atom", "banias", "barcelona", "bobcat", "bulldozer", "core2", "dunnington", "nehalem", "northwood"),
        *("opteron", "opteron_sse3", "penryn", "piledriver", "prescott", "sandybridge", "steamroller"),
    }
)
"""OpenBLAS names of x86 kernels without AVX2."""


def warn_of_old_kernel() -> None:
    """Log a warning if FAISS multiplies matrices without AVX2 although the processor has it."""
    flags = _flags()
    used = [
        str(library["architecture"])
        for library in threadpool_info()
        if library["internal_api"] == "openblas" and Path(library["filepath"]).is_relative_to(_folder_of_faiss())
    ]
    old = [kernel for kernel in used if kernel.lower() in _WITHOUT_AVX2]
    if old and "avx2" in flags:
        better = "SKYLAKEX" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else "HASWELL"
        log.warning(
            "FAISS multiplies matrices by OpenBLAS' kernel %s, which does not use AVX2: searches are slower than this "
            "processor allows; start the server with OPENBLAS_CORETYPE=%s",
            old[0],
            better,
        )


def _folder_of_faiss() -> Path:
    """Return the folder that holds FAISS and, if installed from a wheel, its libraries."""
    return Path(str(faiss.__file__)).parents[1]


def _flags() -> frozenset[str]:
    """Return the processor's feature flags in Linux's names; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def allow_files(needed: int) -> None:
    """Raise the soft limit of open files to `needed`, or as far as allowed; then log a warning."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        log.warning("%d open files are allowed, serving.max_connections may take %d: raise `ulimit -n`", wanted, needed)


def leave_out_departed() -> None:
    """Drop gRPC's log records about a failed send to a caller that has just disconnected."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError) or "ExecuteBatchError" not in record.getMessage():
        return True
    log.debug("a caller left while it was answered: %s", error)
    return False
