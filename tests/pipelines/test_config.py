from typing import Any

import pytest
from pydantic import ValidationError

from weir.pipelines.config import PipelineConfig, SketchConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sketch": {"width": 1000}}, "512 or 1024"),
        ({"window_second": 5}, "window_second"),
        ({"user_shards": 0}, "user_shards"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PipelineConfig(**settings)


def test_every_setting_is_described() -> None:
    for model in (PipelineConfig, SketchConfig):
        assert all(field.description for field in model.model_fields.values())
