"""What does not run here, and what each page presupposes and promises: the table of `test_commands.py`."""

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.docs.blocks import ROOT, blocks, loose

__all__ = ["APART", "BEHIND", "LONG", "LONG_PAGES", "PAGES_OF", "TYPES", "Page"]

APART: Final = {
    r"(git clone|npm|pip|uvx|uv|go install|file=|protoc) ?.*": "fetches packages (tests/deploy, test_clients.py)",
    r"curl --fail-with-body .*": "test_clients.py runs it",
    r"docker .*|kind .*|make cluster-check|python -m deploy\.cluster_check.*": "needs Docker or a cluster",
    r"(echo .*\| )?kubectl (?!kustomize).*": "needs a cluster",
    r"(for part in .*)?aws .*": "needs a bucket of AWS and its client",
    r"make (demo|test|lint|docs)": "CI runs it beside the tests (.ci/run)",
    r"make (demo \w+=.*|tools|native)": "installs what the environment of the tests has or lacks",
    r"make (campaign|stream-campaign|drill)": "takes minutes to hours, by hand before a release",
    r"make gpu-check": "needs a GPU",
    r"make engines(-stop)?|weir stream .*": "tests/integration/test_flink.py and test_flink.py",
    r"weir (ingest --follow|up) --log kafka:.*": "tests/integration/test_kafka.py has the broker",
    r"(WEIR_\w+=\S+ )*pytest .*": "is part of these tests, or needs the real data sets",
    r"(OMP_NUM_THREADS=1 )?python -m benchmarks\..*": "measures for minutes; tests/benchmarks runs each in small",
    r"weir bench losses .*(ml-1m|gowalla)/.*": "hours, on data sets that are not generated",
    r"grpcurl .*": "grpcurl is not among the tools of the tests",
}
"""Commands that do not run here, and why; `test_figures.py` checks that their options exist."""

LONG: Final = {
    r"weir up --demo --once( --fresh)?( --ranks .*| --log .*)?": "one to two minutes",
    r"weir up --config weir\.yaml --log .*": "half a minute",
    r"weir evaluate .*--(seeds|keep-seen) .*": "trains several models, or a larger one",
    r"weir serve .*--set serving\.processes=4": "tests/integration/test_serving_processes.py runs several processes",
    r"weir bench losses --\w+ (interactions|pairs|plays)\..*": "minutes; tests/weir/cli/test_bench.py runs it in small",
    r"weir rebuild .*|weir (train|serve|ingest) --store T .*": "a second pipeline, trainer and server",
    r"weir train --ranks .*": "starts ranks",
}
"""Commands that run with WEIR_CAMPAIGN=long only, and why."""

LONG_PAGES: Final = {"README", "demo", "catalogue", "training"}
"""Pages that run with WEIR_CAMPAIGN=long only: they start `weir up`, as `security` and `make demo` do, or train."""

if os.environ.get("WEIR_CAMPAIGN") == "long":
    LONG_PAGES.clear()
else:
    APART |= {pattern: f"{why}: WEIR_CAMPAIGN=long" for pattern, why in LONG.items()}
if importlib.util.find_spec("weir_front") is None:
    APART[r"weir serve .*serving\.front=native"] = "there is no compiled front: make native"
for _tool, _commands in (
    ("prometheus", r"prometheus .*"),
    ("kubectl", r"kubectl kustomize .*"),
    ("redis-server", r"weir (histories|serve) .*redis:.*"),
):
    if shutil.which(_tool) is None:
        APART[_commands] = f"there is no {_tool}"

BEHIND: Final = {
    r"weir up (?!.*--once).*|weir up": r"answers after",
    r"weir serve --store S": r"listening|ready: ",
    r"weir serve .*": r"ready: ",
    r"weir monitor .*": r"ready: asking",
    r"weir train .*--nodes.*": r"all ranks have started",
    r"weir (ingest|rebuild|train) .*--follow.*": r"metrics on port",
    r"weir histories .*--follow.*": r"",
    r"prometheus .*": r"ready to receive web requests",
}
"""Commands that stay up, and what they print once the page may go on."""


@dataclass(frozen=True)
class Page:
    """What a page presupposes, and what it promises.

    `given` runs before the page, then the commands of `first`. With `store`, S is a trained store, and its log and
    catalogue are in `plays.jsonl` and `items.jsonl`. With `scripts`, Python scripts run, too. `words` stand for what
    the page leaves to the reader. `says` maps the start of a command to what it must print, in place of what the page
    shows; `after` to commands that are run behind it, with what they must print; `statuses` to its exit status.
    """

    given: str = ""
    first: Sequence[str] = ()
    store: bool = False
    scripts: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)


TYPES: Final = "--set 'pipeline.event_types={play: positive, skip: negative}'"
_SMALL: Final = "weir generate plays.jsonl --users 60 --items 80 --events 3000"
_SERVER: Final = "weir serve --store S --set serving.http_port=50080"
_VARIANT: Final = "weir train --store S --variant flat --set 'trainer.variants={flat: {tower: {kind: mean_pooling}}}'"
_FILES: Final = f"""{_SMALL}
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
rows = zip(users, items, times)
ratings = [f"{{number[user]}}::{{number[item]}}::4::{{time // 1000}}\\n" for user, item, time in rows]
open("ml-1m/ratings.dat", "w").writelines(ratings)
open("ml-1m/movies.dat", "w").writelines(f"{{number[item]}}::{{item}}::Drama\\n" for item in set(items))
spread = [datetime.fromtimestamp((times[0] + 4 * (time - times[0])) / 1000, UTC) for time in times]
when = [time.strftime("%Y-%m-%d %H:%M:%S") for time in spread]
numbers = pa.array(range(90000, 90000 + len(users)))
customers, articles = [number[user] for user in users], [f"A-{{number[item]:05}}" for item in items]
orders = [numbers, pa.array(customers), pa.array(articles), when]
pa.csv.write_csv(pa.table(orders, ["Order No", "Customer No", "Article", "Ordered At"]), "orders.csv")
END"""
"""A small log under all the names and forms of the pages."""


def _shown(page: str, start: str) -> str:
    """Return a pattern for the block of a page that starts with a text: numbers may differ."""
    [block] = [one for one in blocks(ROOT / page) if one.text.lstrip().startswith(start)]
    return r"\s+".join(loose(line) for line in block.text.splitlines() if line.strip())


_BAD: Final = "printf 'trainer: {batch_sise: 1}\\nserving: {port: -1}\\n' > bad.yaml; weir config check bad.yaml"
_GUARDED: Final = "curl --silent --cacert keys/ca.crt https://localhost:50080/v1/info"
_PAGE: Final = "curl --silent --output /dev/null --write-out '%{http_code}' http://localhost:50090/api/caller"
_WEEKS: Final = "--store S --set pipeline.window_seconds=259200"
_ANN_AND_BOB: Final = """for user in ann bob; do for item in 0 1 2; do
echo '{"event_id":"'$user$item'","user_id":"'$user'","item_id":"jazz-blue-note-00'$item'",'\
'"timestamp":1774828800000,"event_type":"play"}' >> plays.jsonl
done; done"""
"""Two users with events of the last days of a log of 90 days."""

PAGES_OF: Final[Mapping[str, Page]] = {
    "README": Page(
        given=f"{_FILES}\nmkdir interactions; cp plays.jsonl interactions",
        words={"--set pipeline.log=/var/log/interactions": "--store T --set pipeline.log=interactions"},
        says={"weir query": r"bundle 0", "weir click": r"changed|answer"},
    ),
    "attribution": Page(
        store=True,
        first=("weir serve --store S --set serving.served.share=1", "weir query ann"),
    ),
    "catalogue": Page(
        words={"s3://shop/items.parquet": "items.jsonl", "/etc/weir/takedown.txt": "takedown.txt"},
        says={"weir query anna-0 --tag jazz": r" jazz-", "weir query": "bundle 0", "curl": "itemIds"},
        after={"echo techno": [("sleep 2; weir query anna-0 --k 1000 | grep -c techno-blue-note-008", "^0")]},
    ),
    "change-a-store": Page(
        given=f"{_SMALL} --days 90\n{_ANN_AND_BOB}\n"
        "mkdir log; split -l 1500 plays.jsonl log/ --additional-suffix .jsonl\n"
        f"for file in log/*; do weir ingest --log $file {_WEEKS} {TYPES}; done",
        words={"--log L": "--log plays.jsonl", "window_seconds=3600": "window_seconds=86400"},
        says={
            "weir retire --store S --older-than 30d --dry": "would retire [1-9]",
            "weir retire": "retired [1-9]",
            "weir rebuild --from S --to T --cut-over": "S has ended",
        },
        statuses={"weir verify": 1},
        after={
            "weir settings": [("weir train --store S && ls S/bundles", "CURRENT")],
            "weir verify": [
                (
                    "weir forget --store S --user ann --grace 0s; weir verify --store S --absent ann && echo gone",
                    "gone",
                ),
                ("weir verify --store S --absent bob || echo there", "there"),
            ],
        },
    ),
    "configuration": Page(
        given=f"{_SMALL} --days 2",
        says={"weir settings --store S --set": '"skip": "negative".* is .*"skip": "ignore".* holds from commit'},
        words={"--log L": "--log plays.jsonl"},
        after={
            "weir config check": [
                (_BAD, _shown("docs/configuration.md", "weir: these settings cannot be used:\n  trainer"))
            ],
            "weir config schema": [(f"weir config schema | diff - {ROOT}/docs/weir.schema.json && echo same", "same")],
        },
    ),
    "demo": Page(given=_FILES, says={"weir query": "bundle 0"}),
    "deploy": Page(
        store=True,
        given=f"weir retire --store S --older-than 3d --grace 0s\n{_VARIANT}",
        says={"weir verify": " 0 at fault"},
        after={
            "weir serve --store copy/S": [
                ("weir query ann", "bundle 0"),
                ("weir train --store copy/S; weir inspect variants --store copy/S", "flat"),
            ]
        },
    ),
    "evaluation": Page(
        given=_FILES, words={"LOG": "plays.jsonl"}, says={"weir evaluate": "better than popularity|too small"}
    ),
    "monitoring": Page(
        store=True,
        given="mkdir docs",
        says={"weir serve --store S --set serving.access_log": ""},
        after={
            "weir serve --store S --set serving.access_log": [
                (
                    "weir query ann; sleep 1; cat access.jsonl",
                    '"time": .*"method": .*"bundle": .*"queries": 1, "items": 10, "code": "OK", "ms": ',
                )
            ],
            "grep -rl": [("grep -rl weir.example.com deploy || echo replaced", "replaced")],
            "python -m deploy.monitoring.build": [
                (f"diff docs/runbooks.md {ROOT}/docs/runbooks.md && echo same", "same")
            ],
        },
    ),
    "page": Page(
        store=True,
        first=(_SERVER,),
        environment={"WEIR_STORE": "S"},
        after={"weir monitor": [("curl --silent localhost:50090/", "(?i)<!doctype html")]},
    ),
    "pipeline": Page(store=True, environment={"WEIR_STORE": "S"}),
    "recall": Page(store=True, after={"weir inspect age": [("ls age", r"age\.html\s+age\.json\s+age\.png")]}),
    "security": Page(
        scripts=True,
        says={"weir query": "bundle 0", "curl": "bundleVersion"},
        after={
            "curl": [
                (_GUARDED, "TOKEN_MISSING"),
                ("WEIR_CLIENT__TOKEN_FILE=null weir query anna-0", "TOKEN_MISSING|token"),
                (_PAGE, "401"),
            ]
        },
    ),
    "serving": Page(
        store=True,
        scripts=True,
        given="touch weir.yaml" + ("\nredis-server --save '' > /dev/null &" if shutil.which("redis-server") else ""),
        first=(_SERVER,),
        environment={"WEIR_CONFIG": "weir.yaml", "WEIR_PIPELINE__LOG": "plays.jsonl"},
        says={"weir query": "knows no feature age, country", "curl localhost:50080/v1/retrieve": "itemIds"},
    ),
    "store": Page(
        store=True,
        environment={"WEIR_STORE": "S"},
        words={"00000064-0000001515-6d50e331": "$(basename $(ls -d S/bundles/0* | tail -1))"},
        says={"weir train --ranks": "training with 2 ranks"},
    ),
    "training": Page(store=True, environment={"WEIR_STORE": "S"}, says={"weir bench step": r"step / \(tower"}),
    "your-log": Page(
        given=_FILES,
        statuses={"weir check": 1},
        says={
            "weir evaluate --quick --log": r"(?=.*the model is better than popularity: recall@20 0\.\d+ against 0\.\d+)"
            r"(?=.* interactions, .* users, .* items; .* to train on, .* to validate, .* to test)"
            r"(?=.*trained .* steps, .* epochs, .* kept step .*: recall@20 0\.\d+ on validation)"
        },
        after={
            "weir check": [
                ("weir check orders.csv", _shown("docs/your-log.md", "log            orders.csv")),
                ("weir init orders.csv > weir.yaml; cat weir.yaml", 'user_id: "Customer No"'),
            ]
        },
    ),
}
