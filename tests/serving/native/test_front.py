"""What a server says where the compiled front cannot be used; the front at work is in tests/integration."""

import sys

import pytest
from prometheus_client import CollectorRegistry

from weir.contracts import Store
from weir.serving.config import ServingConfig
from weir.serving.server import Server


def test_without_its_package_the_remedy_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weir_front", None)
    with pytest.raises(ValueError, match=r"needs the package weir-front: `make native` builds it"):
        Server(store, ServingConfig(front="native", metrics_port=0), registry=CollectorRegistry(auto_describe=True))
