import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.awaited import Awaited, awaited_window
from weir.pipelines.config import PipelineConfig


def said(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [int(record.getMessage()) for record in caplog.records]


def test_it_is_said_within_seconds_and_then_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    awaited = Awaited(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for second in range(4000):
            now[0] = second
            awaited.say(lambda: str(now[0]).removesuffix(".0"))
    assert said(caplog) == [2, 62, 182, 422, 902, 1862, 2822, 3782]


@given(commits=st.lists(st.integers(0, 500), max_size=20))
def test_no_minute_after_a_commit_has_a_word(commits: list[int]) -> None:
    now, spoken, last = [0.0], list[float](), -60.0
    awaited = Awaited(lambda: now[0])

    def sentence() -> str:
        spoken.append(now[0])
        return ""

    for second in range(600):
        now[0] = second
        if second in commits:
            awaited.over()
            last = second
        before = len(spoken)
        awaited.say(sentence)
        assert len(spoken) == before or second >= last + 60 or (second == 2 and last < 0)
    assert spoken or min(commits) <= 2


def test_the_window_its_end_the_watermark_and_its_holder_are_named() -> None:
    config = PipelineConfig(log="x", window_seconds=10, allowed_lateness_seconds=5, idle_seconds=7)
    told = awaited_window(config, 1_767_225_600_000, 1_767_225_604_000, "partition 3")
    for part in ("2026-01-01 00:00:00 to 2026-01-01 00:00:10", "partition 3", "5 s", "7 s", "00:00:04"):
        assert part in told
