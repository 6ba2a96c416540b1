from pathlib import Path

import pytest

from weir.config import load_settings
from weir.demo.generator import GeneratorConfig, generate
from weir.demo.source import LogProfile
from weir.up.demo_settings import demo_settings, log_settings

MONTH = LogProfile(200_000, 0, 30 * 86_400_000)


@pytest.mark.parametrize("rows", [200_000, 5_000_000])
@pytest.mark.parametrize("generated", [True, False])
def test_the_preset_can_be_used(rows: int, generated: bool) -> None:
    profile = LogProfile(rows, 0, 30 * 86_400_000)
    settings = load_settings(None, None, demo_settings(Path("log"), profile, generated=generated))
    assert settings.pipeline.log == "log"
    assert settings.pipeline.window_seconds == 12 * 3600
    # The tower must not read further back than the pipeline remembers.
    assert settings.trainer.tower.history_length <= settings.pipeline.history_length
    assert bool(settings.pipeline.event_types) == generated


def test_the_generated_logs_event_types_are_all_known() -> None:
    types = demo_settings(Path("log"), MONTH, generated=True)["pipeline"]["event_types"]
    lines = generate(GeneratorConfig(users=20, items=40, events=500, days=2, malformed=0)).lines
    found = {line.split(b'"event_type":"')[1].split(b'"')[0].decode() for line in lines.splitlines()}
    assert found == set(types)


def test_a_log_alone_decides_the_window_and_nothing_of_the_model() -> None:
    assert set(log_settings(Path("log"), MONTH)) == {"pipeline"}
