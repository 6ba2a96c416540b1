"""Every command of every page runs as it stands, in order, and does what the page says.

`APART` names the commands that do not run here, and why. All others run: in a folder and a network of the page's own, after
what the page presupposes (`PAGES_OF`), on a log that is generated.
"""

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, Command, blocks, commands
from tests.docs.shell import Ran, Shell, is_possible, shell

T = TypeVar("T")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_possible(), reason="the kernel gives no network to a process of this user (unshare)"),
]

APART: Final = {
    r"(git clone|npm|pip|uvx|uv|go install|file=|protoc) ?.*": "fetches packages; tests/deploy and test_clients.py try them",
    r"curl --fail-with-body .*": "test_clients.py runs it",
    r"docker .*|kind .*|make cluster-check|python -m deploy\.cluster_check.*": "needs Docker or a cluster",
    r"(echo .*\| )?kubectl (?!kustomize).*": "needs a cluster",
    r"(for part in .*)?aws .*": "needs a bucket of AWS and its client",
    r"make (demo|test|lint|docs)": "CI runs it beside the tests (.ci/run)",
    r"make (demo \w+=.*|tools|native)": "installs what the environment of the tests has or lacks",
    r"make (campaign|stream-campaign|drill)": "takes minutes to hours, by hand before a release",
    r"make gpu-check": "needs a GPU",
    r"make engines(-stop)?|weir stream .*": "tests/integration/test_engines.py and test_flink.py run engines and stream",
    r"weir (ingest --follow|up) --log kafka:.*": "tests/integration/test_kafka.py has the broker",
    r"(WEIR_\w+=\S+ )*pytest .*": "is part of these tests, or needs the real data sets",
    r"(OMP_NUM_THREADS=1 )?python -m benchmarks\..*": "measures for minutes; tests/benchmarks runs each in small",
    r"weir bench losses .*(ml-1m|gowalla)/.*": "hours, on data sets that are not generated",
    r"grpcurl .*": "grpcurl is not among the tools of the tests",
}
"""Commands that do not run here, and why; their options are checked by `test_figures.py` all the same."""

LONG: Final = {
    r"weir up --demo --once( --fresh)?( --ranks .*| --log .*)?": "one to two minutes",
    r"weir up --config weir\.yaml --log .*": "half a minute; the page of access starts `weir up`",
    r"weir bench losses --\w+ (interactions|pairs|plays)\..*": "minutes; tests/weir/cli/test_bench.py runs it in small",
}
"""Commands that run with WEIR_CAMPAIGN=long only, and why."""
LONG_PAGES: Final = {"README", "demo", "catalogue", "variants"}
"""Pages whose commands need a running `weir up`; CI runs that of `security`, and `make demo`."""
IS_LONG: Final = os.environ.get("WEIR_CAMPAIGN") == "long"
if not IS_LONG:
    APART |= LONG

if importlib.util.find_spec("weir_front") is None:
    APART[r"weir serve .*serving\.front=native"] = "there is no compiled front: make native"
for tool in ("prometheus", "kubectl"):
    if shutil.which(tool) is None:
        APART[rf"{tool} .*"] = f"there is no {tool}"

BEHIND: Final = {
    r"weir up (?!.*--once).*|weir up": r"answers after",
    r"weir serve .*": r"ready: ",
    r"weir monitor .*": r"ready: asking",
    r"weir (ingest|rebuild|histories) .*--follow.*": r"",
    r"weir train .*--nodes.*": r"all ranks have started",
    r"weir train .*--follow.*": r"",
    r"prometheus .*": r"ready to receive web requests",
}
"""Commands that stay up, and what they print once the page may go on."""


@dataclass(frozen=True)
class Page:
    """What a page presupposes, and what it promises.

    `given` runs before the page, then `up` is started; with `store`, S is a trained store, and there are its log and
    catalogue, `plays.jsonl` and `items.jsonl`. `words` stand for what the page leaves to the reader. `says` maps a command
    to what it must print, `after` to commands that are run behind it and what they must print; `statuses`
    are exit statuses other than 0. With `scripts` Python scripts run, too.
    """

    given: str = ""
    up: tuple[str, ...] = ()
    store: bool = False
    scripts: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)


TYPES: Final = "--set 'pipeline.event_types={play: positive, skip: negative}'"
SMALL: Final = "weir generate plays.jsonl --users 60 --items 80 --events 3000"
SERVER: Final = "weir serve --store S --set serving.http_port=50080"
FILES: Final = f"""{SMALL}
python - <<'END'
import json, os, re
import pyarrow as pa, pyarrow.csv, pyarrow.parquet
from datetime import UTC, datetime

whole = re.compile(r'"user_id":"([^"]+)","item_id":"([^"]+)","timestamp":(\\d+)')
rows = [whole.search(line.decode(errors="ignore")) for line in open("plays.jsonl", "rb")]
users, items, times = zip(*(row.groups() for row in rows if row and len(row[0]) < 200))
times = [int(time) for time in times]
pa.parquet.write_table(pa.table([users, items, times], ["user_id", "item_id", "timestamp"]), "interactions.parquet")
pa.csv.write_csv(pa.table([users, items, times], ["customer", "article", "ordered"]), "shop.csv")
open("pairs.txt", "w").writelines(f"{{user}} {{item}}\\n" for user, item in zip(users, items))
number = {{name: number for number, name in enumerate(sorted({{*users, *items}}))}}
os.mkdir("ml-1m")
ratings = [f"{{number[user]}}::{{number[item]}}::4::{{time // 1000}}\\n" for user, item, time in zip(users, items, times)]
open("ml-1m/ratings.dat", "w").writelines(ratings)
open("ml-1m/movies.dat", "w").writelines(f"{{number[item]}}::{{item}}::Drama\\n" for item in set(items))
when = [datetime.fromtimestamp((times[0] + 4 * (time - times[0])) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") for time in times]
numbers = pa.array(range(90000, 90000 + len(users)))
orders = [numbers, pa.array([number[user] for user in users]), pa.array([f"A-{{number[item]:05}}" for item in items]), when]
pa.csv.write_csv(pa.table(orders, ["Order No", "Customer No", "Article", "Ordered At"]), "orders.csv")
END"""
"""A small log under all the names and forms of the pages."""


def shown(page: str, start: str) -> str:
    """Return a pattern for the block of a page that starts with a text: numbers may differ."""
    [block] = [one for one in blocks(ROOT / page) if one.text.lstrip().startswith(start)]
    return r"\s+".join(_loose(line) for line in block.text.splitlines() if line.strip())


def _loose(line: str) -> str:
    parts = [re.escape(part) for part in re.split(r"[-+]?\d[\d,.:]*", " ".join(line.split()))]
    return r"[-+]?\d[\d,.:]*".join(parts).replace(r"\ ", r"\s+").replace("MiB", "[KM]iB").replace(r"\.\.\.", ".*")


PAGES_OF: Final[dict[str, Page]] = {
    "README": Page(
        given=f"mkdir interactions && weir generate interactions/plays.jsonl --users 60 --items 80 --events 3000\n{FILES}",
        words={"--set pipeline.log=/var/log/interactions": "--store T --set pipeline.log=interactions"},
        says={"weir query": r"bundle 0", "weir click": r"changed|answer"},
    ),
    "attribution": Page(
        store=True,
        up=("weir serve --store S --set serving.served.share=1",),
    ),
    "bundles": Page(
        store=True,
        words={"00000064-0000001515-6d50e331": "$(basename $(ls -d S/bundles/0* | tail -1))"},
    ),
    "catalogue": Page(says={"weir query": "bundle 0", "curl": "itemIds"}),
    "checkpoints": Page(store=True, environment={"WEIR_STORE": "S"}),
    "configuration": Page(
        after={
            "weir config check": [
                (
                    "printf 'trainer: {batch_sise: 1}\\nserving: {port: -1}\\n' > bad.yaml; weir config check bad.yaml; echo $?",
                    shown("docs/configuration.md", "weir: these settings"),
                )
            ],
            "weir config schema": [(f"weir config schema | diff - {ROOT}/docs/weir.schema.json && echo same", "same")],
        }
    ),
    "demo": Page(given=FILES, says={"weir query": "bundle 0"}),
    "evaluation": Page(given=FILES, words={"LOG": "plays.jsonl"}),
    "from-log-to-model": Page(
        given=FILES,
        statuses={"weir check": 1},
        says={
            "weir evaluate --quick --log": r"(?=.*the model is better than popularity: recall@20 0\.\d+ against 0\.\d+: \+0\.\d+, 95 %)"
            r"(?=.* interactions, .* users, .* items; .* to train on, .* to validate, .* to test)"
            r"(?=.*trained .* steps, .* epochs, .* kept step .*: recall@20 0\.\d+ on validation)"
        },
    ),
    "monitoring": Page(
        store=True,
        says={"weir serve --store S --set serving.access_log": ""},
        after={
            "weir serve --store S --set serving.access_log": [
                (
                    "weir query ann; sleep 1; cat access.jsonl",
                    '"time": .*"method": .*"bundle": .*"queries": 1, "items": 10, "code": "OK", "ms": ',
                )
            ],
            "grep -rl": [("grep -rl weir.example.com deploy || echo replaced", "replaced")],
        },
    ),
    "page": Page(store=True, up=(SERVER,), environment={"WEIR_STORE": "S"}),
    "privacy": Page(
        store=True,
        statuses={"weir verify": 1},
        after={
            "weir verify": [
                (
                    "weir forget --store S --user ann --grace 0s && weir verify --store S --absent ann && echo gone",
                    "gone",
                ),
                ("weir verify --store S --absent bob || echo there", "there"),
            ]
        },
    ),
    "rebuild": Page(store=True, words={"--log L": "--log plays.jsonl"}),
    "recall": Page(store=True, after={"weir inspect age": [("ls age", r"age\.html\s+age\.json\s+age\.png")]}),
    "retention": Page(
        given=f"{SMALL} --days 90\nmkdir log; split -l 1500 plays.jsonl log/ --additional-suffix .jsonl\n"
        f"for file in log/*; do weir ingest --store S --log $file --set pipeline.window_seconds=259200 {TYPES}; done",
        words={"...": f"--store S --log log --set pipeline.window_seconds=259200 {TYPES}"},
        says={"weir retire --store S --older-than 30d --dry": "would retire 1", "weir retire --store S": "retired 1"},
    ),
    "serving": Page(
        store=True,
        scripts=True,
        given="redis-server --save '' > /dev/null & ",
        up=(SERVER,),
    ),
    "training": Page(store=True, environment={"WEIR_STORE": "S"}),
    "variants": Page(store=True, environment={"WEIR_CONFIG": "weir.yaml", "WEIR_PIPELINE__LOG": "plays.jsonl"}),
    "security": Page(scripts=True, says={"weir query": "bundle 0", "curl": "bundleVersion"}),
    "your-log": Page(
        given=FILES,
        statuses={"weir check": 1},
        words={
            "customer ...": "customer --set pipeline.columns.item_id=article --set pipeline.columns.timestamp=ordered"
        },
        after={
            "weir check": [
                ("weir check orders.csv", shown("docs/your-log.md", "log            orders.csv")),
                ("weir init orders.csv > weir.yaml; cat weir.yaml", "user_id: Customer No"),
            ]
        },
    ),
}
NOTHING: Final = Page()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small log, its catalogue, and a store that was trained on it and served."""
    folder = tmp_path_factory.mktemp("prepared")
    with shell(folder, {}) as run:
        for command in (
            "weir generate plays.jsonl --users 200 --items 200 --events 8000 --days 6 --catalogue items.jsonl",
            *(_event(user, item) for user in ("ann", "bob") for item in range(3)),
            f"weir ingest --log plays.jsonl --store S --set pipeline.window_seconds=14400 {TYPES}",
            "weir train --store S",
        ):
            done = run.run(command)
            assert done.status == 0, done
    return folder / "page"


def _event(user: str, item: int) -> str:
    event = (
        f'{{"event_id":"{user}{item}","user_id":"{user}","item_id":"jazz-blue-note-00{item}","timestamp":1767225609571'
    )
    return f'echo \'{event},"event_type":"play"}}\' >> plays.jsonl'


def why_apart(command: Command) -> str | None:
    return next((why for pattern, why in APART.items() if re.fullmatch(pattern, command.plain)), None)


def steps(page: Path) -> Iterator[Command | Block]:
    """Return the commands of a page, its scripts and its settings, in order."""
    for block in blocks(page):
        settings = re.match(r"[^\n]*# in weir\.yaml\n(?:[^\n]+\n)*\n?", block.text)
        if settings:
            yield Block(block.page, block.line, "yaml", settings[0])
        if block.language in ("", "bash", "sh", "console"):
            yield from commands(block)
        elif block.language in ("python", "yaml"):
            yield block


WITH_COMMANDS: Final = [
    page for page in PAGES if any(isinstance(step, Command) and not why_apart(step) for step in steps(page))
]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands(page: Path, prepared: Path, tmp_path: Path) -> None:
    if page.stem in LONG_PAGES and not IS_LONG:
        pytest.skip("starts `weir up`, as CI does for docs/security.md and `make demo`: WEIR_CAMPAIGN=long")
    about = PAGES_OF.get(page.stem, NOTHING)
    with shell(tmp_path, about.environment) as run:
        if about.store:
            for name in ("S", "plays.jsonl", "items.jsonl"):
                source = prepared / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, run.folder / name)
        if about.given:
            done = run.run(f"( set -e\n{about.given}\n)")
            assert done.status == 0, done
        for command in about.up:
            run.start(command, r"ready: ")
        for step in steps(page):
            if isinstance(step, Command) and (why := why_apart(step)):
                print(f"{step.page}:{step.line}: {step.plain}: not run: {why}")
            elif isinstance(step, Command):
                take(run, step, about)
            elif step.language == "yaml":
                (run.folder / "weir.yaml").write_text(step.text)
            elif about.scripts and ">>>" not in step.text:
                take(run, Command(step.page, step.line, f"python - <<'END'\n{step.text}END"), about)
        for command in reversed(list(run.behind)):
            assert run.stop(command).status in (0, 130), command
        print(run.run("times"))


def take(run: Shell, step: Command, about: Page) -> None:
    """Run a command of a page, and see that what the page says of it is so."""
    text = step.text
    for word, meaning in about.words.items():
        text = text.replace(word, meaning)
    where = f"{step.page}:{step.line}: "
    if step.plain in {Command("", 0, other).plain for other in run.behind}:
        return  # the page names it again; it runs
    for other in list(run.behind):
        if other.split()[:2] == text.split()[:2] or ("weir up" in other and text.startswith("weir serve")):
            run.stop(other)
    ready = next((ready for pattern, ready in BEHIND.items() if re.fullmatch(pattern, step.plain)), None)
    start = time.monotonic()
    if ready is None:
        done = run.run(text)
        assert done.status == _of(about.statuses, step, 0), f"{where}{done}"
    else:
        run.start(text, ready)
        done = Ran(text, 0, run.behind[text][1].read_text(), "")
    print(f"{time.monotonic() - start:.1f} s {done}")
    said = done.out + done.err
    for line in step.shown if _of(about.says, step, None) is None else ():
        assert re.search(_loose(line), " ".join(said.split())), f"{where}the page shows {line!r}\n{done}"
    assert re.search(_of(about.says, step, ""), said, flags=re.DOTALL), f"{where}{done}"
    for command, wanted in _of(about.after, step, ()):
        more = run.run(command)
        assert re.search(wanted, more.out + more.err, flags=re.DOTALL), f"{where}{more}"


def _of(table: Mapping[str, T], step: Command, otherwise: T) -> T:
    return next((value for start, value in table.items() if step.plain.startswith(start)), otherwise)


def test_what_is_not_run_is_on_a_page() -> None:
    found = [step for page in PAGES for step in steps(page) if isinstance(step, Command)]
    unused = [pattern for pattern in APART if not any(re.fullmatch(pattern, step.plain) for step in found)]
    assert unused == []
    assert set(PAGES_OF) <= {page.stem for page in WITH_COMMANDS}
