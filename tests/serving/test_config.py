import pytest
from pydantic import BaseModel, ValidationError

from weir.serving.config import LimitsConfig, ServingConfig
from weir.serving.monitor.config import MonitorConfig


@pytest.mark.parametrize("config", [LimitsConfig, ServingConfig, MonitorConfig])
def test_every_setting_is_documented_and_has_a_default(config: type[BaseModel]) -> None:
    config()
    assert all(field.description for field in config.model_fields.values())


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ServingConfig, {"port": 70_000}),
        (ServingConfig, {"queue_queries": 0}),
        (ServingConfig, {"device": "tpu"}),
        (ServingConfig, {"portt": 1}),
        (LimitsConfig, {"max_k": 0}),
        (MonitorConfig, {"k": ()}),
        (MonitorConfig, {"k": (10, 0)}),
        (MonitorConfig, {"examples_per_window": 0}),
    ],
)
def test_wrong_settings_are_named(config: type[BaseModel], settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        config.model_validate(settings)


def test_the_monitor_asks_no_more_than_the_server_answers() -> None:
    limits, monitor = LimitsConfig(), MonitorConfig()
    assert 2 * max(monitor.k) <= limits.max_k
    assert monitor.queries_per_request <= limits.max_queries
