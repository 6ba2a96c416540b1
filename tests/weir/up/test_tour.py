import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logs import LogColumns, LogConfig
from weir.demo.source import open_log
from weir.up.tour import last_user


def test_the_user_of_the_last_sound_row_is_taken(tmp_path: Path) -> None:
    rows = [{"user_id": user, "item_id": "i", "timestamp": 1_700_000_000 + n} for n, user in enumerate(["a", "b", "é"])]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*(json.dumps(row) for row in rows), "{broken", '["list"]', '{"user_id": ""}']))
    assert last_user(open_log(path), LogConfig()) == "é"


def test_numbers_are_spelt_as_the_windows_will(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"uid": [3, 4], "item_id": [1, 2], "timestamp": [1_700_000_000, 1_700_000_001]}), path)
    config = LogConfig(columns=LogColumns(user_id="uid"))
    assert last_user(open_log(path, config), config) == "4"


def test_a_log_that_ends_in_refused_rows_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sound = '{"user_id": "u", "item_id": "i", "timestamp": 1700000000}\n'
    path.write_text(sound + 200 * '{"timestamp": 1700000000}\n')
    with pytest.raises(ValueError, match="none of the last 200 rows of the log is valid"):
        last_user(open_log(path), LogConfig())
