import json
import time
from pathlib import Path

import pytest

from tests.pipelines import support
from weir.contracts import Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import LayoutError, open_layout, with_window

DAY = 86_400
TOPIC = "kafka://broker:9092/clicks"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("window_seconds", 20), ("user_shards", 3), ("sketch", {"kind": "exact"}), ("sketch", {"width": 512, "depth": 2})],
)
def test_settings_that_would_count_twice_or_could_not_be_merged_are_refused(
    tmp_path: Path, setting: str, value: object
) -> None:
    store = Store(str(tmp_path / "store"))
    open_layout(store, support.config(tmp_path))
    with pytest.raises(
        LayoutError, match=f"{setting} is .* was written with .*: use that, or a new store .*weir rebuild --from"
    ):
        open_layout(store, support.config(tmp_path, **{setting: value}))


def a_log(folder: Path, age_seconds: float) -> str:
    (folder / "log").mkdir(exist_ok=True)
    event = {"user_id": "ann", "item_id": "i", "timestamp": round(time.time() - age_seconds)}
    (folder / "log" / "0.jsonl").write_text(json.dumps(event) + "\n")
    return str(folder / "log")


@pytest.mark.parametrize(
    ("age", "follow", "seconds"), [(60, True, 10), (60, False, DAY), (2 * DAY, True, DAY), (2 * DAY, False, DAY)]
)
def test_a_new_store_has_short_windows_where_its_log_is_young_and_followed(
    tmp_path: Path, age: int, seconds: int, *, follow: bool
) -> None:
    config = PipelineConfig(log=a_log(tmp_path, age))
    assert with_window(Store(str(tmp_path / "store")), config, follow=follow).window_seconds == seconds


@pytest.mark.parametrize("log", [TOPIC, "nothing-yet"])
def test_a_topic_and_a_log_that_has_not_begun_have_short_windows(tmp_path: Path, log: str) -> None:
    config = PipelineConfig(log=log if log == TOPIC else str(tmp_path / log))
    assert with_window(Store(str(tmp_path / "store")), config, follow=True).window_seconds == 10


def test_the_settings_come_before_the_store_and_the_store_before_the_default(tmp_path: Path) -> None:
    store, config = Store(str(tmp_path / "store")), PipelineConfig(log=TOPIC)
    open_layout(store, config.model_copy(update={"window_seconds": 77}))
    open_layout(store, with_window(store, config, follow=True))
    assert with_window(store, config, follow=True).window_seconds == 77
    given = config.model_copy(update={"window_seconds": 5})
    assert with_window(store, given, follow=True) == given


def test_a_store_whose_windows_are_longer_than_the_retention_is_refused(tmp_path: Path) -> None:
    store, config = Store(str(tmp_path / "store")), PipelineConfig(log=TOPIC, retention_days=2)
    open_layout(store, config.model_copy(update={"window_seconds": 3 * DAY}))
    with pytest.raises(ValueError, match="retention_days"):
        with_window(store, config, follow=True)
