"""The process around a run: reproducible arithmetic, and its metrics over HTTP."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from prometheus_client import CollectorRegistry, ProcessCollector

from contracts.exposition import exposed

__all__ = ["deterministic", "served"]

logger = logging.getLogger(__name__)


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for algorithms whose results do not vary between runs (a GPU may not have one of each)."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn" if torch.cuda.is_available() else "error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextmanager
def served(registry: CollectorRegistry, host: str, port: int, *, wanted: bool) -> Iterator[None]:
    """Serve a registry on ``/metrics`` while inside, if `wanted`; port 0 takes any, and the log names it."""
    if not wanted:
        yield
        return
    ProcessCollector(registry=registry)
    with exposed(registry, host, port) as where:
        logger.info("metrics on %s", where)
        yield
