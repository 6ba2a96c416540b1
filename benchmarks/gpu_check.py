"""All that needs a GPU, in one run of a few minutes, without Beam: tests, then figures, as a report.

    make gpu-check                                  # build/gpu-check.md and build/gpu-check.json
    python -m benchmarks.gpu_check --device cpu     # the same code at small sizes, to see that it works

Without a GPU it says so, writes a report that says so, and ends with status 0: there was nothing to check. It ends with
1 where a test or a measurement has failed; the report has the others nevertheless.
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import faiss
import torch
import typer

from benchmarks import gpu_parts as parts
from benchmarks.gpu_parts import SMALL, Figure, Limits, Sizes
from benchmarks.harness import command_line

app = command_line(__doc__)
Report = dict[str, Any]
_TESTS = ["tests/serving", "tests/trainer"]
_TEST_SECONDS = 240


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
        return {
            "device": f"CPU ({platform.processor() or platform.machine()}), small sizes: no figures to quote",
            **found,
        }
    about = torch.cuda.get_device_properties(device)
    return {"device": f"{about.name}, {about.total_memory / 2**30:.0f} GiB", "cuda": torch.version.cuda, **found}


def measured(device: torch.device, sizes: Sizes) -> Report:
    """Return the figures by part, and what failed; one part that fails does not keep the others from being measured."""
    started = time.perf_counter()
    limit = parts.limits(device, sizes)
    found: dict[str, list[Report]] = {"limits": [asdict(figure) for figure in _of(limit)]}
    failures: dict[str, str] = {}
    for name, part in _parts(device, sizes, limit).items():
        try:
            found[name] = [asdict(figure) for figure in part()]
        except Exception as error:  # noqa: BLE001 - reported, whatever it is
            failures[name] = f"{type(error).__name__}: {error}"
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if device.type == "cuda" and not _faiss_gpus():
        notes = ["FAISS finds no GPU: its indexes were not measured; install the extra gpu instead of cpu"]
    else:
        notes = []
    return {"figures": found, "failures": failures, "notes": notes, "seconds": time.perf_counter() - started}


def _of(limit: Limits) -> Iterator[Figure]:
    yield Figure("bandwidth of a copy, read and written", limit.bandwidth / 1e9, "GB/s")
    yield Figure("product of bfloat16 matrices", limit.bfloat16 / 1e12, "TFLOP/s")


def _parts(device: torch.device, sizes: Sizes, limit: Limits) -> dict[str, Callable[[], Iterable[Figure]]]:
    found: dict[str, Callable[[], Iterable[Figure]]] = {
        "serving: exact search with torch": lambda: parts.exact_search(device, sizes, limit),
        "training: loss": lambda: parts.loss(device, sizes, limit),
        "training: the other parts of a step": lambda: parts.step_parts(device, sizes),
        "training: whole steps, default settings": lambda: parts.whole_step(device, sizes),
        "training: evaluation": lambda: parts.evaluation(device, sizes),
    }
    if device.type == "cpu" or _faiss_gpus():
        found["serving: FAISS as the server uses it"] = lambda: parts.faiss_indexes(device, sizes)
    if device.type == "cuda" and _faiss_gpus():
        found["serving: the same on the CPU"] = lambda: parts.faiss_indexes(torch.device("cpu"), sizes)
        if hasattr(faiss, "GpuIndexCagra"):
            found["serving: a graph of faiss-gpu-cuvs, which the server does not use yet"] = lambda: parts.cagra(sizes)
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
