from typing import Any

import pytest
from pydantic import ValidationError

from contracts import Label
from logs import LogColumns, LogConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"event_types": {"click": "good"}}, "positive"),
        ({"columns": {"user_id": "id", "item_id": "id"}}, "user_id and item_id"),
        ({"item_features": {"dense": ["weight"]}}, "'weight', which is read as weight already"),
        ({"item_features": {"categorical": ["a"], "dense": ["a"]}}, "'a' is named twice"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LogConfig(**settings)


def test_every_setting_is_described() -> None:
    for model in (LogConfig, LogColumns):
        assert all(field.description for field in model.model_fields.values())


def test_naive_times_are_utc_and_types_become_labels() -> None:
    config = LogConfig(min_time="2000-01-01T00:00:00", event_types={"a": "positive", "b": "ignore"})
    assert config.min_time.timestamp() == 946_684_800
    assert config.labels() == {"a": Label.POSITIVE, "b": Label.IGNORE}
