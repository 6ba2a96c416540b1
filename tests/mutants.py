"""Mutants: make small faults in the code, one at a time, and count how many of them the unit tests notice.

mutmut makes the mutants. An equal share of each group in `mutants.toml` is drawn by a hash of the seed, the function's
name and the code, so equal code gives equal mutants wherever its file lies. Each is tested in a copy of the tree, in a
fork that has the heavy libraries loaded, by the test files that execute the mutated function; the file that mirrors
the module goes first. A test that fails twice kills a mutant, and so does a time-out. Left out are mutants of texts,
whose wording is free, and those that put None in the place of a value, which the type checker finds.
"""

import difflib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import permutations
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import coverage
import libcst as cst
import pytest
import typer
from hypothesis import HealthCheck, Phase, settings
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators, operator_string
from mutmut.mutation.pragma_handling import IgnoredCode
from rich.console import Console
from rich.progress import track
from rich.table import Table

_OPERATORS: Final = [(kind, operator) for kind, operator in mutation_operators if operator is not operator_string]
_LEFT_OUT: Final = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "weir-data")
# Equal examples in each run, and no shrinking, which costs more than all the rest.
_EXAMPLES: Final = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
Measured = dict[str, tuple[float, set[tuple[str, int]]]]  # by test file: seconds, and the (path, line) it executes


class Mutant(NamedTuple):
    path: str
    function: str
    lines: range  # of the function's body
    module: cst.Module
    mutation: Mutation

    def code(self) -> str:
        mutated = deep_replace(self.module, self.mutation.original_node, self.mutation.mutated_node)
        return cst.ensure_type(mutated, cst.Module).code

    def __str__(self) -> str:
        pair = self.module.code.splitlines(), self.code().splitlines()
        _, _, place, *changes = difflib.unified_diff(*pair, lineterm="", n=0)
        line = place.split()[1].lstrip("-").split(",")[0]
        return "\n".join([f"{self.path}:{line} {self.function}", *(f"    {change}" for change in changes)])


@dataclass(eq=False)
class Run:
    """One run of pytest on a copy of the tree: with a mutant, or without one to see which lines the tests execute."""

    group: dict[str, Any]
    tests: list[str]
    limit: float  # seconds
    mutant: Mutant | None = None

    def start(self, slot: Path) -> None:
        self.slot, self.since = slot, time.monotonic()
        if self.mutant:
            (slot / "tree" / self.mutant.path).write_text(self.mutant.code(), "utf-8")
        self.process = get_context("fork").Process(target=self._child)
        self.process.start()

    def _child(self) -> None:
        os.setsid()
        tree = self.slot / "tree"
        os.chdir(tree)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
        log = os.open(self.slot / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.dont_write_bytecode = self.mutant is not None
        settings.register_profile("mutants", _EXAMPLES)
        settings.load_profile("mutants")
        lines = coverage.Coverage(self.slot / "lines", include=[str(tree / path) for path in self.group["sources"]])
        lines.erase()
        folders = [f"--basetemp={self.slot / 'tmp'}", "-o", f"cache_dir={self.slot / 'cache'}"]
        options = ["-x", "-q", "--timeout=60", *folders, *self.group.get("options", ())]
        with nullcontext() if self.mutant else lines.collect():
            status = pytest.main(["--cache-clear", *options, *self.tests])
            if status:  # a test must fail twice: on a busy machine one that waits for a clock may fail by itself
                status = pytest.main(["--last-failed", "--last-failed-no-failures=none", *options, *self.tests])
        lines.save()
        os._exit(status)

    def is_over(self) -> bool:
        self.seconds = time.monotonic() - self.since
        return not self.process.is_alive() or self.seconds > self.limit

    def end(self, root: Path) -> None:
        """Stop whatever still runs and restore the copy; `status` is pytest's, or negative after a time-out."""
        self.process.kill()
        self.process.join()
        self.status = self.process.exitcode
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        if self.mutant:
            shutil.copy2(root / self.mutant.path, self.slot / "tree" / self.mutant.path)

    def executed(self) -> set[tuple[str, int]]:
        data = coverage.CoverageData(self.slot / "lines")
        data.read()
        tree = self.slot / "tree"
        return {
            (Path(file).relative_to(tree).as_posix(), line)
            for file in data.measured_files()
            for line in data.lines(file) or ()
        }


def finished(runs: Iterable[Run], slots: list[Path], root: Path) -> Iterator[Run]:
    """Yield the runs as they end, one at a time in each slot."""
    pending, idle, running = iter(runs), list(slots), list[Run]()
    try:
        while True:
            while idle and (run := next(pending, None)):
                run.start(idle.pop())
                running.append(run)
            if not running:
                return
            connection.wait([run.process.sentinel for run in running], timeout=1)
            for run in filter(Run.is_over, running.copy()):
                run.end(root)
                running.remove(run)
                yield run
                idle.append(run.slot)
    finally:
        for run in running:
            run.end(root)


def measure(groups: list[dict[str, Any]], root: Path, finish: Callable[[list[Run], str], Iterable[Run]]) -> Measured:
    """Run each test file on the code as it is, where it must pass, and execute the copies that are mutated."""
    files = [(group, file) for group in groups for pattern in group["tests"] for file in sorted(root.glob(pattern))]
    runs = [Run(group, [file.relative_to(root).as_posix()], limit=900) for group, file in files]
    measured = {}
    for run in finish(runs, "tests without a mutant"):
        if run.status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            sys.exit(f"{run.tests[0]} fails without a mutant:\n{(run.slot / 'log').read_text()}")
        measured[run.tests[0]] = run.seconds, run.executed()
    for group in groups:
        tests = {file.relative_to(root).as_posix() for pattern in group["tests"] for file in root.glob(pattern)}
        if not any(measured[test][1] for test in tests):
            sys.exit(f"no test executes the files to be mutated: {', '.join(group['sources'])}")
    return measured


def candidates(root: Path, patterns: list[str]) -> Iterator[Mutant]:
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        wrapper = MetadataWrapper(cst.parse_module(path.read_text("utf-8")))
        visitor = MutationVisitor(_OPERATORS, IgnoredCode(set(), set(), set()))
        wrapper.visit(visitor)
        positions = wrapper.resolve(PositionProvider)
        for mutation in visitor.mutations:
            function = mutation.contained_by_top_level_function
            if isinstance(function, cst.FunctionDef) and not _puts_none(mutation, wrapper.module):
                lines = range(positions[function.body.body[0]].start.line, positions[function].end.line + 1)
                yield Mutant(path.relative_to(root).as_posix(), function.name.value, lines, wrapper.module, mutation)


def _puts_none(mutation: Mutation, module: cst.Module) -> bool:
    return module.code_for_node(mutation.mutated_node).count("None") > module.code_for_node(
        mutation.original_node
    ).count("None")


def draw(among: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    seen: Counter[tuple[str, ...]] = Counter()

    def rank(mutant: Mutant) -> bytes:
        nodes = mutant.mutation.original_node, mutant.mutation.mutated_node
        identity = (mutant.function, *(mutant.module.code_for_node(node) for node in nodes))
        seen[identity] += 1
        return hashlib.sha256(repr((seed, identity, seen[identity])).encode()).digest()

    return sorted(among, key=rank)[:count]


def run_of(mutant: Mutant, group: dict[str, Any], measured: Measured, root: Path) -> Run:
    """Choose the test files that execute the function, or all where none is seen to; time them generously."""
    files = [file.relative_to(root).as_posix() for pattern in group["tests"] for file in root.glob(pattern)]
    body = {(mutant.path, line) for line in mutant.lines}
    path = Path(mutant.path)
    mirror = f"test_{path.parent.name if path.stem == '__init__' else path.stem.lstrip('_')}.py"
    tests = [file for file in files if measured[file][1] & body] or files
    tests.sort(key=lambda file: (Path(file).name != mirror, measured[file][0], file))
    return Run(group, tests, limit=60 + 2 * sum(measured[file][0] for file in tests), mutant=mutant)


def report(runs: dict[str, list[Run]], survivors: Path) -> None:
    """Print the shares, and write the survivors to a file."""
    survived = [str(run.mutant) for of_group in runs.values() for run in of_group if not run.status]
    survivors.parent.mkdir(parents=True, exist_ok=True)
    survivors.write_text("\n".join(survived))
    table = Table("group", "mutants", "killed", "by time-out", "survived", "share")
    for name, these in (*runs.items(), ("all", [run for of_group in runs.values() for run in of_group])):
        killed = [run for run in these if run.status]
        late = sum(run.seconds > run.limit for run in killed)
        counts = len(these), len(killed), late, len(these) - len(killed)
        table.add_row(name, *map(str, counts), f"{len(killed) / len(these):.1%}")
    Console().print(table, f"survivors: {survivors}")


def main(
    root: Path = Path(), groups: Path = Path("tests/mutants.toml"), count: int = 300, seed: int = 0, jobs: int = 2
) -> None:
    """Draw COUNT mutants of the tree at ROOT and print the share that the tests of each group kill."""
    root, chosen = root.resolve(), tomllib.loads(groups.read_text())
    for name in chosen["preload"]:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        slots = [Path(folder).resolve() / str(number) for number in range(jobs)]
        for slot in slots:
            shutil.copytree(root, slot / "tree", symlinks=True, ignore=_LEFT_OUT)

        def finish(runs: list[Run], title: str) -> Iterable[Run]:
            return track(finished(runs, slots, root), title, total=len(runs))

        measured = measure(list(chosen["groups"].values()), root, finish)
        for one, other in permutations(slots, 2):  # each has compiled the files that its own runs imported
            shutil.copytree(one / "tree", other / "tree", symlinks=True, dirs_exist_ok=True)
        runs = {}
        for name, group in chosen["groups"].items():
            drawn = draw(candidates(root, group["sources"]), count // len(chosen["groups"]), seed)
            runs[name] = [run_of(mutant, group, measured, root) for mutant in drawn]
        list(finish([run for of_group in runs.values() for run in of_group], "mutants"))
    report(runs, Path("build/survivors.txt"))


if __name__ == "__main__":
    typer.run(main)
