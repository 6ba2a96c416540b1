from typing import Any

import pytest
from pydantic import ValidationError

from weir.contracts import Label
from weir.readers import LogColumns, LogConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"event_types": {"click": "good"}}, "positive"),
        ({"columns": {"user_id": "id", "item_id": "id"}}, "user_id and item_id"),
        ({"item_features": {"dense": ["weight"]}}, "'weight', which is read as weight already"),
        ({"item_features": {"categorical": ["a"], "dense": ["a"]}}, "'a' is named twice"),
        ({"item_features": {"categorical": ["item_key"]}}, "'item_key' is a column of every window's items"),
        ({"item_features": {"dense": ["count"]}}, "'count' is a column"),
        ({"user_features": {"dense": ["weight"]}}, "user_features names 'weight', which is read as weight already"),
        (
            {"item_features": {"dense": ["a"]}, "user_features": {"categorical": ["a"]}},
            "user_features names 'a', which is named by item_features already",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LogConfig(**settings)


def test_features_of_items_and_users_are_read_together_and_there_is_room_for_both() -> None:
    numbers = [f"{number}" for number in range(32)]
    items = {"categorical": ["genre"], "dense": [f"i{one}" for one in numbers]}
    # The columns of items are none of theirs.
    users = {"categorical": ["count", "lives"], "dense": [f"u{one}" for one in numbers]}
    found = LogConfig(item_features=items, user_features=users).features
    assert found.categorical == ("genre", "count", "lives")
    assert found.dense == (*items["dense"], *users["dense"])


def test_every_setting_is_described() -> None:
    for model in (LogConfig, LogColumns):
        assert all(field.description for field in model.model_fields.values())


def test_naive_times_are_utc_and_types_become_labels() -> None:
    config = LogConfig(min_time="2000-01-01T00:00:00", event_types={"a": "positive", "b": "ignore"})
    assert config.min_time.timestamp() == 946_684_800
    assert config.labels() == {"a": Label.POSITIVE, "b": Label.IGNORE}
