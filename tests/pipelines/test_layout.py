from pathlib import Path

import pytest

from tests.pipelines import support
from weir.contracts import Store
from weir.pipelines.layout import LayoutError, open_layout


@pytest.mark.parametrize(
    ("setting", "value"),
    [("window_seconds", 20), ("user_shards", 3), ("sketch", {"kind": "exact"}), ("sketch", {"width": 512, "depth": 2})],
)
def test_settings_that_would_count_twice_or_could_not_be_merged_are_refused(
    tmp_path: Path, setting: str, value: object
) -> None:
    store = Store(str(tmp_path / "store"))
    open_layout(store, support.config(tmp_path))
    open_layout(store, support.config(tmp_path, history_length=7))
    with pytest.raises(LayoutError, match=f"{setting} is .* was written with .*: use that, or a new store"):
        open_layout(store, support.config(tmp_path, **{setting: value}))
