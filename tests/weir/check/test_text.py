import gzip
import io
import json
import re
import subprocess
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from weir.check.report import LogReport, check_log, with_settings
from weir.check.text import UnreadableLogError, print_report, require_readable, settings_file
from weir.config import assignments, load_settings
from weir.contracts import Store
from weir.readers import LogColumns, LogConfig
from weir.text import program, visible

SHOP = "customer,sku,bought\n" + "".join(f"c{n},s{n},2025-01-{n + 1:02}\n" for n in range(28))


@pytest.fixture
def shop(tmp_path: Path) -> LogReport:
    path = tmp_path / "my shop.csv"
    path.write_text(SHOP + "x,y\n")
    return check_log(LogConfig(log=str(path)))


def printed(report: LogReport, given: Sequence[tuple[str, str]] = ()) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(console, report, given)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_report_says_what_there_is_what_is_wrong_and_what_to_do(shop: LogReport) -> None:
    text = printed(shop)
    for part in (
        "CSV",
        "96.55 % with the settings below",
        "2025-01-01 00:00 to 2025-01-28 00:00 UTC (27 days)",
        "28 users and 28 items",
        "12 hours: pipeline.window_seconds=43200",
        "first bad row: my shop.csv, line 30: the row has 2 values, the header names 3 columns (malformed_row)",
        "  x,y",
        "  --set pipeline.columns.user_id=customer",
        "weir up --log '/",
        "> weir.yaml",
    ):
        assert part in text


def test_a_log_without_valid_rows_is_refused_with_the_command_that_reads_it(shop: LogReport) -> None:
    with pytest.raises(UnreadableLogError) as refused:
        require_readable(shop, "up --log x")
    settings = "".join(f" --set {one}" for one in shop.settings)
    up, other, evaluate = refused.value.explain()[-3:]
    assert up == f"  {program()} up --log x{settings}"
    assert other == "or, to know within two minutes whether a model beats popularity:"
    assert evaluate == f"  {program()} evaluate --quick --log '{shop.log}'{settings}"
    require_readable(shop.model_copy(update={"valid_before": 1}), "up")


def test_times_in_another_spelling_are_to_be_converted(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("Kunde;Artikel;Zeitpunkt\nK-1;A-1;15.06.2025 15:08\n")
    spelling = "others, such as 01.03.2026, must be converted first"
    assert spelling in printed(check_log(LogConfig(log=str(path))))
    named = LogConfig(log=str(path), columns=LogColumns(user_id="Kunde", item_id="Artikel", timestamp="Zeitpunkt"))
    assert spelling in printed(check_log(named.model_copy(update={"time_zone": "UTC"})))


def test_what_cannot_be_guessed_is_left_to_be_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"p": "x", "sku": 17, "from": 1700000000}\n')
    report = check_log(LogConfig(log=str(path)))
    missing = "".join(f" --set pipeline.columns.{name}=..." for name in ("user_id", "timestamp"))
    ask = f"weir check {path} --set pipeline.columns.item_id=sku{missing}"
    assert "no row is valid: say which column is the user_id and the timestamp:" in printed(report)
    assert ask in printed(report)
    assert yaml.safe_load(settings_file(report, load_settings(overrides={"store": "s"})))["pipeline"]["columns"] == {
        "user_id": "user_id",
        "item_id": "sku",
        "timestamp": "timestamp",
    }
    with pytest.raises(UnreadableLogError) as refused:
        require_readable(report, "up")
    assert "these settings read" not in str(refused.value)


def test_rows_that_no_column_mends_get_the_hint_of_their_reason(tmp_path: Path) -> None:
    path = tmp_path / "floats.jsonl"
    path.write_text('{"user_id": 1.5, "item_id": 2.5, "timestamp": 1700000000}\n')
    shown = printed(check_log(LogConfig(log=str(path))))
    assert "no row is valid, though its columns are known: ids are strings or integers;" in shown


def test_a_log_that_is_too_small_to_judge_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for rows, told in ((999, True), (1000, False)):
        events = ({"user_id": n % 9, "item_id": n % 7, "timestamp": 1_700_000_000 + n} for n in range(rows))
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
        shown = "too small to judge: 999 events, 1,000 are enough" in printed(check_log(LogConfig(log=str(path))))
        assert shown is told


def test_an_empty_log_is_no_error(tmp_path: Path) -> None:
    assert "there is nothing to read" in printed(check_log(LogConfig(log=str(tmp_path))))


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.csv", "log.csv.gz", "log.parquet", "pairs.txt"])
def test_a_file_without_rows_is_no_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "log.parquet":
        pq.write_table(
            pa.table({column: pa.array([], pa.int64()) for column in ("user_id", "item_id", "timestamp")}), path
        )
    else:
        header = b"user_id,item_id,timestamp\n" if "csv" in name else b""
        path.write_bytes(gzip.compress(header) if name.endswith(".gz") else header)
    shown = printed(check_log(LogConfig(log=str(path))))
    assert re.search("there is nothing to read|no row is valid|has no rows", shown), shown


def test_the_settings_file_reads_the_log(shop: LogReport, tmp_path: Path) -> None:
    text = settings_file(shop, load_settings())
    assert yaml.safe_load(text)["pipeline"]["columns"] == {
        "user_id": "customer",
        "item_id": "sku",
        "timestamp": "bought",
    }
    (tmp_path / "weir.yaml").write_text(text)
    settings = load_settings(tmp_path / "weir.yaml")
    assert settings.pipeline.window_seconds == shop.window_seconds
    found = check_log(settings.pipeline)
    assert (found.valid_before, found.settings) == (28, [])
    assert with_settings(LogConfig(log=shop.log), shop.settings).columns == settings.pipeline.columns
    assert Store(str(tmp_path)).exists("weir.yaml")


def test_the_settings_file_of_a_topic_waits_no_longer_than_the_default(shop: LogReport) -> None:
    live = shop.model_copy(update={"log": "kafka://broker:9092/clicks", "window_seconds": 10})
    pipeline = yaml.safe_load(settings_file(live, load_settings()))["pipeline"]
    default = load_settings().pipeline.allowed_lateness_seconds
    assert (pipeline["window_seconds"], pipeline["allowed_lateness_seconds"]) == (10, default)


def test_the_share_of_rows_without_an_id_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    users = ["nan", " ", "u1", "NULL", "u2", "u3", "u4", "u5"]
    rows = (f"{user},i{n},{1_700_000_000 + n}" for n, user in enumerate(users * 10))
    path.write_text("user_id,item_id,timestamp\n" + "\n".join(rows))
    report = check_log(LogConfig(log=str(path)))
    # A blank value of a CSV is an empty one: no field.
    assert (report.valid, report.missing_ids, report.reasons["missing_field"]) == (50, 20, 10)
    assert "25.00 % of the rows, which are refused; pipeline.missing_ids lists" in printed(report)
    path.write_text("\n".join(["user_id,item_id,timestamp", *(f"u,i,{1_700_000_000 + n}" for n in range(9))]))
    assert "missing_ids" not in printed(check_log(LogConfig(log=str(path))))


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("s"), pa.duration("ns"), pa.time64("ns")], ids=str)
def test_times_that_python_does_not_hold_do_not_stop_the_look(tmp_path: Path, kind: pa.DataType) -> None:
    path, row = tmp_path / "log.parquet", {"user_id": ["u"], "item_id": ["i"], "timestamp": [1_700_000_000]}
    pq.write_table(pa.table(row | {"at": pa.array([2**46 + 1]).cast(kind, safe=False)}), path)
    assert check_log(LogConfig(log=str(path))).valid == 1


def test_what_pandas_and_a_warehouse_write_is_valid_as_it_is(tmp_path: Path) -> None:
    rows = [(f"u{n % 6}", f"i{n % 9}", 1_764_000_000 + 600 * n) for n in range(60)]
    cells = (f"{user},{item},{second}000000000\n" for user, item, second in rows)
    (tmp_path / "pandas.csv").write_text("user_id,item_id,timestamp\n" + "".join(cells))
    lines = ({"user_id": user, "item_id": item, "timestamp": second * 10**9} for user, item, second in rows)
    (tmp_path / "pandas.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    number = pa.decimal128(38, 0)
    table = {
        "user_id": pa.array([Decimal(n % 6) for n in range(60)], number),
        "item_id": pa.array([Decimal(n % 9) for n in range(60)], number),
        "timestamp": pa.array([Decimal(second) for *_, second in rows], number),
        "weight": pa.array([Decimal("2.50")] * 60, pa.decimal128(9, 2)),
    }
    pq.write_table(pa.table(table), tmp_path / "warehouse.parquet")
    for name in ("pandas.csv", "pandas.jsonl", "warehouse.parquet"):
        report = check_log(LogConfig(log=str(tmp_path / name)))
        assert (report.valid, report.users, report.items) == (60, 6, 9), name
        assert (report.start_ms, report.end_ms) == (1_764_000_000_000, 1_764_035_400_000), name


HOSTILE: Final = (
    *("Customer No", "a'b", 'a"b', "$HOME", "`id`", "$(id)", "#user", "-x", "--set", "a=b", "a.b", "a;b", "a|b&c"),
    *("a\\b", "!x", "*", "~", "{a,b}", "ä😀", "a\nb", "a\n", "\t", "a\x00b", "\x1b[31m", "\u202eabc", "\x85", "\u2028"),
    *("%s", "[a]", "No", "null", "007", "::", "user #1", "a: b", "\U000e0001"),
)
NAMES: Final = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.mark.parametrize("shell", ["sh", "bash"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(names=st.lists(NAMES, min_size=3, max_size=3, unique=True), log=NAMES)
def test_what_is_proposed_reads_as_the_same_settings_when_it_is_pasted(
    shell: str, names: list[str], log: str, shop: LogReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.check.text.program", lambda: "weir")
    assume({*names}.isdisjoint(LogColumns().model_dump().values()))
    # No path has a NUL, and a shell drops line breaks at the end of what it substitutes.
    assume("\0" not in log and not log.endswith("\n") and "/" not in log)
    columns = dict(zip(("user_id", "item_id", "timestamp"), names, strict=True))
    proposed = [f"pipeline.columns.{field}={column}" for field, column in columns.items()]
    before = ("--set", "pipeline.columns.user_id=not\nthis")
    shown = printed(shop.model_copy(update={"log": log, "settings": proposed}), (before, ("--config", log)))
    assert visible(shown.replace("\n", "")) == shown.replace("\n", "")
    evaluate, up = (re.search(rf"weir {name} .*", shown)[0] for name in ("evaluate --quick", "up"))  # type: ignore[index]
    for command in (evaluate, up):
        script = f"weir() {{ printf '%s\\0' \"$@\"; }}\n{command}"
        words = subprocess.run([shell, "-c", script], capture_output=True, check=True).stdout.decode().split("\0")
        pairs = list(zip(*[iter(words[2 if command is evaluate else 1 :])] * 2, strict=False))
        values, problems = assignments([value for option, value in pairs if option == "--set"])
        found = load_settings(None, values, None, problems).pipeline
        assert found.columns.model_dump(include=set(columns)) == columns
        assert dict(pairs).get("--log", found.log) == log
        assert dict(pairs)["--config"] == log
