import json
import os
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from weir.cli.main import app

SHOP = "customer,sku,bought\n" + "".join(f"c{n},s{n},2025-01-{n + 1:02}\n" for n in range(28))
COLUMNS = ["pipeline.columns.user_id=customer", "pipeline.columns.item_id=sku", "pipeline.columns.timestamp=bought"]


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    return result.stdout


def test_check_says_with_its_status_whether_a_log_can_be_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text(SHOP)
    report = json.loads(run("check", str(path), "--json", status=1))
    assert report["settings"] == [*COLUMNS, "pipeline.time_zone=UTC"]
    given = [part for setting in report["settings"] for part in ("--set", setting)]
    shown = run("check", str(path), *given)
    assert "100 %" in shown
    assert f"= window {report['window_seconds'] // 3600} h + lateness 5 s + " in shown


def test_check_says_which_columns_are_features(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = {"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000, "genre": "jazz", "country": "de", "age": 31}
    path.write_text(json.dumps(row) + "\n")
    named = ["pipeline.item_features={categorical: [genre]}", "pipeline.user_features={categorical: [country]}"]
    given = [part for one in named for part in ("--set", one)]
    report = json.loads(run("check", str(path), *given, "--json"))
    read_as = {column["name"]: column["read_as"] for column in report["columns"]}
    assert (read_as["genre"], read_as["country"], read_as["age"]) == ("item feature", "user feature", None)


def test_init_prints_a_file_that_check_is_content_with(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text(SHOP)
    (tmp_path / "weir.yaml").write_text(run("init", str(path)))
    run("config", "check", str(tmp_path / "weir.yaml"))
    report = json.loads(run("check", str(path), "--config", str(tmp_path / "weir.yaml"), "--json"))
    assert (report["valid_before"], report["settings"]) == (28, [])


def test_the_commands_that_check_prints_can_be_pasted(tmp_path: Path) -> None:
    log = tmp_path / "it's a log\n#1.jsonl"
    rows = ({"#user": f"u{n % 6}", "item: id": f"i{n % 9}", "time": 1_764_000_000 + n} for n in range(60))
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shown = run("check", str(log), status=1)
    init = re.search(r"or: (.* init .* > weir\.yaml)$", shown, re.MULTILINE)
    again = [f"--set {line}" for line in re.findall(r"^  --set (.*)$", shown, re.MULTILINE)]
    assert init is not None
    assert len(again) == 3
    weir = init[1].split(" init ")[0]
    path = init[1].split(" init ")[1].removesuffix(" > weir.yaml")
    script = f"{init[1]}\n{weir} check {path} --config weir.yaml --json\n{weir} check {path} {' '.join(again)} --json"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pasted = subprocess.run(
        ["sh", "-ec", script], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    decoder = json.JSONDecoder()
    by_file, end = decoder.raw_decode(pasted.stdout)
    by_options, _ = decoder.raw_decode(pasted.stdout[end:].lstrip())
    assert by_file == by_options
    assert (by_file["valid_before"], by_file["settings"]) == (60, [])
