import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from weir.config import load_settings
from weir.contracts import Store
from weir.freshness import event_to_answer, longest, waits
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import with_window
from weir.pipelines.stream.config import StreamConfig
from weir.serving.config import ServingConfig
from weir.trainer.settings.trainer import TrainerConfig

README = Path(__file__).parents[2] / "README.md"
TOPIC = "kafka://broker:9092/clicks"


DEFAULTS = load_settings()


@trials(max_examples=50)
@given(
    window=st.integers(1, 100_000),
    late=st.integers(0, 1000),
    polls=st.tuples(*[st.integers(1, 9)] * 4),
    windows=st.integers(1, 5),
    every=st.none() | st.integers(1, 500),
    engine=st.booleans(),
)
def test_the_time_is_the_sum_of_the_waits_that_the_settings_ask_for(
    window: int, late: int, polls: tuple[int, ...], windows: int, every: int | None, *, engine: bool
) -> None:
    log, trainer, server, checkpoint = polls
    sections = {
        "pipeline": PipelineConfig(window_seconds=window, allowed_lateness_seconds=late, poll_seconds=log),
        "stream": StreamConfig(poll_seconds=0.5, checkpoint_seconds=checkpoint),
        "trainer": TrainerConfig(poll_seconds=trainer, export_every_windows=windows, export_every_seconds=every),
        "serving": ServingConfig(poll_seconds=server),
    }
    found = DEFAULTS.model_copy(update=sections)
    *parts, work = waits(found, engine=engine)
    read = checkpoint + 0.5 if engine else log
    bundles = every or window * (windows - 1)
    assert sum(one.seconds for one in parts) == pytest.approx(window + late + read + trainer + bundles + server)
    assert longest(found, engine=engine) == pytest.approx(sum(one.seconds for one in (*parts, work)))
    line = event_to_answer(found, engine=engine)
    assert line.startswith("event -> answer: about ")
    assert line.count(" + ") == len(parts)


@pytest.mark.parametrize("engine", [False, True])
def test_the_readme_promises_what_the_defaults_keep_for_a_live_topic(tmp_path: Path, *, engine: bool) -> None:
    promised = re.search(r"within (\d+) seconds of\s+the event", README.read_text())
    assert promised is not None
    pipeline = with_window(Store(str(tmp_path)), PipelineConfig(log=TOPIC), follow=True)
    assert longest(DEFAULTS.model_copy(update={"pipeline": pipeline}), engine=engine) <= int(promised.group(1))
