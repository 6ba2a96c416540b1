import logging
import re
import urllib.request

import pytest
import torch
from prometheus_client import CollectorRegistry, Counter

from trainer.ranks.runtime import deterministic, served


def test_the_registry_is_served_while_inside(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    Counter("weir_things", "Things.", registry=registry).inc(3)
    with caplog.at_level(logging.INFO), served(registry, "127.0.0.1", 0, wanted=True):
        [port] = re.findall(r"metrics on port (\d+) of 127\.0\.0\.1", caplog.messages[-1])
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            text = answer.read()
        assert b"weir_things_total 3.0" in text
        assert b"process_resident_memory_bytes" in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10)


def test_other_ranks_serve_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), served(CollectorRegistry(), "127.0.0.1", 0, wanted=False):
        assert caplog.messages == []


def test_determinism_is_asked_for_inside_only() -> None:
    before = torch.get_deterministic_debug_mode()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_deterministic_debug_mode() == before
