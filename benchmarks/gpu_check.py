"""All that needs a GPU, in one run of a few minutes, without Beam: tests, then figures, as a report.

    make gpu-check                                  # build/gpu-check.md and build/gpu-check.json
    python -m benchmarks.gpu_check --device cpu     # the same code at small sizes, to see that it works

Pieces of serving and training are measured beside limits of the same device: a copy of memory and a large product of
matrices. Without a GPU the report says so, and the status is 0. It is 1 where a test or a measurement has failed; the
report has the others nevertheless.
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import faiss
import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional

from benchmarks.harness import F32, I64, command_line, recall, unit
from benchmarks.loss import Problem, chunked
from weir.serving.index.index import Device, ExactIndex, on_device
from weir.trainer import TowerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.ranking.cases import Cases, Lists
from weir.trainer.ranking.ranker import rank
from weir.trainer.towers import build_tower
from weir.trainer.towers.in_training import Forward, Precision, in_training
from weir.trainer.towers.tower import Dense

app = command_line(__doc__)
Report = dict[str, Any]
_TESTS = ["tests/serving", "tests/trainer"]
_TEST_SECONDS = 240
K: Final = 100
RECALL: Final = 0.95
_CHUNK: Final = 1 << 17
"""Items scored at a time by the search with torch."""


@dataclass(frozen=True)
class Sizes:
    """How large the problems are; the defaults are those that the figures are about."""

    items: int = 1_000_000
    dimension: int = 64
    queries: int = 4096
    lists: int = 4096
    rows: int = 8192
    columns: int = 32768
    width: int = 128
    history: int = 50
    users: int = 65_536
    seconds: float = 2.0
    """For each measurement, warm-up aside."""


SMALL: Final = Sizes(3000, 16, 64, 32, 128, 512, 16, 8, 200, 0.01)


@dataclass(frozen=True)
class Figure:
    """A result: what was measured, its value and unit, and the share of the limit that it is compared with."""

    what: str
    value: float
    unit: str
    share: float | None = None
    limit: str = ""


@dataclass(frozen=True)
class Limits:
    """What the device reaches: bytes a second in a copy, operations a second in products of bfloat16."""

    bandwidth: float
    bfloat16: float


def seconds_of(call: Callable[[], object], device: torch.device, at_least: float) -> float:
    """Return the median seconds of a call, the work on the device included; five calls or more."""
    call()
    found: list[float] = []
    ends = time.perf_counter() + at_least
    while len(found) < 5 or time.perf_counter() < ends:
        _wait(device)
        started = time.perf_counter()
        call()
        _wait(device)
        found.append(time.perf_counter() - started)
    return float(np.median(found))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def limits(device: torch.device, sizes: Sizes) -> Limits:
    """Measure the limits."""
    many = sizes.items * sizes.dimension * 4
    source = torch.zeros(many // 4, device=device)
    target = torch.empty_like(source)
    copied = seconds_of(lambda: target.copy_(source), device, sizes.seconds)
    left = torch.randn(sizes.rows, sizes.rows, device=device, dtype=torch.bfloat16)
    product = seconds_of(lambda: left @ left, device, sizes.seconds)
    return Limits(2 * many / copied, 2 * sizes.rows**3 / product)


def exact_search(device: torch.device, sizes: Sizes, limit: Limits) -> Iterator[Figure]:
    """Search the whole catalogue for a batch, chunk by chunk, in float32 and float16.

    The bytes compared with the bandwidth are those that this way has to move: the catalogue once, and every score
    written and read once. A kernel that selects while it multiplies would move the catalogue only.
    """
    draw = torch.Generator().manual_seed(0)
    items = functional.normalize(torch.randn(sizes.items, sizes.dimension, generator=draw))
    queries = functional.normalize(torch.randn(sizes.queries, sizes.dimension, generator=draw))
    truth = _best(items, queries[:64], K).indices
    for dtype in (torch.float32, torch.float16):
        there, asked = items.to(device, dtype), queries.to(device, dtype)
        seconds = seconds_of(partial(_best, there, asked, K), device, sizes.seconds)
        size = dtype.itemsize * (items.numel() + 2 * sizes.queries * sizes.items)
        found = _best(there, asked[:64], K).indices.cpu()
        name = f"exact search, {str(dtype).removeprefix('torch.')}, batch of {sizes.queries}"
        yield Figure(name, 1000 * seconds, "ms", size / seconds / limit.bandwidth, "of the copy's bandwidth")
        yield Figure(f"{name}: recall@{K}", recall(found.numpy(), truth.numpy()), "")


def _best(items: Tensor, queries: Tensor, k: int) -> "torch.return_types.topk":
    """Return the best k of all items (queries, k), chunks merged as they come."""
    scores, rows = [], []
    for start in range(0, len(items), _CHUNK):
        found = (queries @ items[start : start + _CHUNK].T).topk(min(k, len(items) - start))
        scores.append(found.values)
        rows.append(found.indices + start)
    best = torch.cat(scores, 1).topk(k)
    return torch.return_types.topk((best.values, torch.cat(rows, 1).gather(1, best.indices)))


def faiss_indexes(device: torch.device, sizes: Sizes) -> Iterator[Figure]:
    """Search as the server does, flat and with inverted lists: as few of these as reach the recall."""
    where: Device = "gpu" if device.type == "cuda" else "cpu"
    items, queries, truth = _problem(sizes)
    for kind in ("Flat", f"IVF{sizes.lists},Flat"):
        made = faiss.index_factory(sizes.dimension, kind, faiss.METRIC_INNER_PRODUCT)
        made.train(items[: 64 * sizes.lists])
        made.add(items)
        index = on_device(made, {"nprobe": 1} if "IVF" in kind else {}, where)
        probes = next(
            n for n in _powers(index.lists) if recall(index.search(queries[:256], K, n).rows, truth) >= RECALL
        )
        seconds = seconds_of(partial(index.search, queries, K, probes), device, sizes.seconds)
        label = f"faiss {kind}{f', nprobe {probes}' if probes else ''}, {where}"
        yield Figure(label, sizes.queries / seconds, "queries/s")
        yield Figure(f"{label}: recall@{K}", recall(index.search(queries[:256], K, probes).rows, truth), "")


@lru_cache(maxsize=1)
def _problem(sizes: Sizes) -> tuple[F32, F32, I64]:
    """Return clustered items and queries, and the best rows of the first 256 queries."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(2, sizes.lists // 4), sizes.dimension), np.float32)
    items = _clustered(rng, centres, sizes.items)
    queries = _clustered(rng, centres, sizes.queries)
    return items, queries, ExactIndex(items).search(queries[:256], K).rows


def _powers(lists: int) -> Iterator[int]:
    """Yield what nprobe to try: powers of two, then all lists; 0 where there are none."""
    yield from ([1 << power for power in range(lists.bit_length()) if 1 << power < lists] + [lists]) if lists else [0]


def _clustered(rng: np.random.Generator, centres: F32, count: int) -> F32:
    noise = rng.standard_normal((count, centres.shape[1]), np.float32)
    return unit(centres[rng.integers(0, len(centres), count)] + np.float32(0.7) * noise)


def loss(device: torch.device, sizes: Sizes, limit: Limits) -> Iterator[Figure]:
    """Time the in-batch softmax with its gradients, against its three products at the rate of the limit."""
    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        query, items = (
            functional.normalize(torch.randn(count, sizes.width, generator=draw)).to(device, dtype).requires_grad_()
            for count in (sizes.rows, sizes.columns)
        )
        own = torch.arange(sizes.rows, device=device)
        problem = Problem(query, items, torch.stack([own, own], 1), log_q=torch.empty(0))
        seconds = seconds_of(chunked(problem, "none", chunk_rows=1024), device, sizes.seconds)
        name = f"loss {sizes.rows} x {sizes.columns} x {sizes.width}, {str(dtype).removeprefix('torch.')}"
        share = 6 * sizes.rows * sizes.columns * sizes.width / seconds / limit.bfloat16
        yield Figure(name, 1000 * seconds, "ms", share, "of the products' bfloat16 rate")


def step_parts(device: torch.device, sizes: Sizes) -> Iterator[Figure]:
    """Time a training step beside its loss: the default tower both ways, the table's look-up and its update."""
    yield from _tower(device, sizes)
    table = Embeddings(torch.zeros(sizes.items + 1, sizes.width, device=device))
    rows = torch.randperm(sizes.items, device=device)[: sizes.columns] + 1
    gradient = torch.randn(len(rows), sizes.width, device=device)
    looked_up = seconds_of(lambda: table.weight[rows], device, sizes.seconds)
    yield Figure(f"look-up of {len(rows)} rows", 1000 * looked_up, "ms")
    updated = seconds_of(lambda: table.adagrad_step(rows, gradient, 0.1), device, sizes.seconds)
    yield Figure(f"update of {len(rows)} rows", 1000 * updated, "ms")


def _tower(device: torch.device, sizes: Sizes) -> Iterator[Figure]:
    config = TowerConfig(dimension=sizes.width, history_length=sizes.history)
    tower = build_tower(config, 0).to(device)
    history = torch.randn(sizes.rows, sizes.history, sizes.width, device=device).requires_grad_()
    mask = torch.ones(sizes.rows, sizes.history, dtype=torch.bool, device=device)
    # On a CPU, compiling takes longer than all the rest.
    for is_compiled, precision in product((False, True)[: 1 + (device.type == "cuda")], get_args(Precision)):
        forward = in_training(tower, config, compiled=is_compiled, precision=precision)

        def both_ways(forward: Forward = forward) -> object:
            return torch.autograd.grad(
                forward(Dense(history), mask).square().mean(), [history, *tower.parameters()], allow_unused=True
            )

        how = f"{'compiled, ' if is_compiled else ''}{precision}"
        name = f"{config.kind}, {sizes.rows} histories of {sizes.history}, both ways, {how}"
        yield Figure(name, 1000 * seconds_of(both_ways, device, sizes.seconds), "ms")


def evaluation(device: torch.device, sizes: Sizes) -> Iterator[Figure]:
    """Rank all items for many users, as offline evaluation does; the whole is a million users."""
    draw = torch.Generator().manual_seed(0)
    items = torch.randn(sizes.items, sizes.dimension, generator=draw).to(device)
    users = torch.randn(sizes.users, sizes.dimension, generator=draw).to(device)
    numbers = np.arange(sizes.users)
    wanted = np.random.default_rng(0).integers(0, sizes.items, sizes.users)
    cases = Cases(numbers, Lists.grouped(numbers, wanted, sizes.users))
    block = (1 << 28) if device.type == "cuda" else (1 << 21)
    started = time.perf_counter()
    rank(cases, lambda some: users[some.to(device)] @ items.T, sizes.items, depth=20, block_scores=block)
    _wait(device)
    rate = sizes.users / (time.perf_counter() - started)
    yield Figure(f"ranking {sizes.items} items for a user", rate, "users/s")
    yield Figure("a million users at this rate", 1e6 / rate, "s")


@app.command()
def check(
    device: Annotated[Literal["auto", "cpu"], typer.Option(help="cpu: small sizes, whatever there is")] = "auto",
    folder: Annotated[Path, typer.Option(help="where the report is written")] = Path("build"),
) -> None:
    """Check, measure and report."""
    if device == "auto" and not torch.cuda.is_available():
        write(folder, {**machine(None), "status": "skipped: torch finds no CUDA device, so nothing was measured"})
        raise typer.Exit(0)
    on_gpu = device == "auto"
    where = torch.device("cuda" if on_gpu else "cpu")
    report = {**machine(where), **measured(where, Sizes() if on_gpu else SMALL)}
    if on_gpu:
        report["tests"] = tested()
    failed = bool(report["failures"]) or report.get("tests", {}).get("status", 0) != 0
    write(folder, {**report, "status": "failed" if failed else "passed"})
    raise typer.Exit(int(failed))


def machine(device: torch.device | None) -> Report:
    """Describe what the figures are of."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "faiss": faiss.__version__}
    if device is None:
        return {"device": "none", **found}
    if device.type == "cpu":
        kind = platform.processor() or platform.machine()
        return {"device": f"CPU ({kind}), small sizes: no figures to quote", **found}
    about = torch.cuda.get_device_properties(device)
    return {"device": f"{about.name}, {about.total_memory / 2**30:.0f} GiB", "cuda": torch.version.cuda, **found}


def measured(device: torch.device, sizes: Sizes) -> Report:
    """Return the figures by part, and what failed; one part that fails does not keep the others from being measured."""
    started = time.perf_counter()
    limit = limits(device, sizes)
    bandwidth = Figure("bandwidth of a copy, read and written", limit.bandwidth / 1e9, "GB/s")
    products = Figure("product of bfloat16 matrices", limit.bfloat16 / 1e12, "TFLOP/s")
    found: dict[str, list[Report]] = {"limits": [asdict(bandwidth), asdict(products)]}
    failures: dict[str, str] = {}
    for name, part in _parts(device, sizes, limit).items():
        try:
            found[name] = [asdict(figure) for figure in part()]
        except Exception as error:  # noqa: BLE001 - reported, whatever it is
            failures[name] = f"{type(error).__name__}: {error}"
        if device.type == "cuda":
            torch.cuda.empty_cache()
    note = "FAISS finds no GPU: its indexes were not measured; install the extra gpu instead of cpu"
    notes = [note] if device.type == "cuda" and not _faiss_gpus() else []
    return {"figures": found, "failures": failures, "notes": notes, "seconds": time.perf_counter() - started}


def _parts(device: torch.device, sizes: Sizes, limit: Limits) -> dict[str, Callable[[], Iterable[Figure]]]:
    found: dict[str, Callable[[], Iterable[Figure]]] = {
        "serving: exact search with torch": lambda: exact_search(device, sizes, limit),
        "training: loss": lambda: loss(device, sizes, limit),
        "training: the other parts of a step": lambda: step_parts(device, sizes),
        "training: evaluation": lambda: evaluation(device, sizes),
    }
    if device.type == "cpu" or _faiss_gpus():
        found["serving: FAISS as the server uses it"] = lambda: faiss_indexes(device, sizes)
    if device.type == "cuda" and _faiss_gpus():
        found["serving: the same on the CPU"] = lambda: faiss_indexes(torch.device("cpu"), sizes)
    return found


def _faiss_gpus() -> int:
    return int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0


def tested() -> Report:
    """Run the tests that are marked `gpu`."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *_TESTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return {"status": 124, "says": f"they took more than {_TEST_SECONDS} s"}
    return {"status": done.returncode, "says": "\n".join(done.stdout.splitlines()[-5:])}


def write(folder: Path, report: Report) -> None:
    """Write the report as JSON and as Markdown, and print the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu-check.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "gpu-check.md").write_text(text := "\n".join(markdown(report)) + "\n")
    print(text)


def markdown(report: Report) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"# GPU check: {report['status']}"
    yield ""
    for name in ("device", "cuda", "torch", "faiss", "python"):
        if name in report:
            yield f"- {name}: {report[name]}"
    for name, figures in report.get("figures", {}).items():
        yield f"\n## {name}\n\n| what | value | share |\n|---|---|---|"
        for one in figures:
            share = "" if one["share"] is None else f"{100 * one['share']:.3g} % {one['limit']}"
            yield f"| {one['what']} | {one['value']:.4g} {one['unit']} | {share} |"
    yield from (f"\n{note}." for note in report.get("notes", []))
    for name, problem in report.get("failures", {}).items():
        yield f"\n**{name} failed:** {problem}"
    if "tests" in report:
        yield f"\n## tests marked gpu\n\nstatus {report['tests']['status']}\n\n    {report['tests']['says']}"


if __name__ == "__main__":
    app()
