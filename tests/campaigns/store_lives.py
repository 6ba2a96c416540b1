"""The life of a store: commands of ``weir`` in random order on a log that grows; three in ten are killed.

Now and then a pipeline or a trainer follows beside them, until it is killed, or asked to stop.

``python -m tests.campaigns.store_lives FOLDER SEED COMMANDS`` notes in the folder's ``journal.jsonl`` how each command
ended. They are forks of one process, as those of `tests.campaigns.hunter`.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

import pipelines.ingest  # noqa: F401 - commands import it
import trainer.train  # noqa: F401 - commands import it
from contracts import BundleLog, Store
from tests.campaigns.hunter import fork
from tests.campaigns.life_log import GUESTS, describe, write_part
from tests.campaigns.life_settings import exports_of, settings_of
from weir.cli.main import main as weir

LONGEST: Final = 1.0
"""Seconds after which a command is killed, at most."""
_WHOLE: Final = 120.0
"""Seconds after which a command is killed that ought to have ended."""
GRACE: Final = "10s"
"""How long files that were replaced stay for those who read them."""


@dataclass
class Done:
    """What has been done to a store: what may be done next depends on it."""

    parts: int = 0
    forgotten: list[str] = field(default_factory=list)
    rebuilt: int = 0
    started: int = 0
    repeatable: bool = True
    """Whether bundles can be made again: all windows are there as they were, one rank trained, and rows are not off."""


@dataclass
class Command:
    """A command that runs, and the file of what it says."""

    arguments: list[str]
    process: int
    out: Path


@dataclass
class Life:
    """A store in a folder, and what becomes of it."""

    folder: Path
    rng: random.Random
    settings: dict[str, Any]
    done: Done = field(default_factory=Done)
    followers: dict[str, Command] = field(default_factory=dict)
    """Pipelines and trainers that run beside, by their command."""

    def command(self) -> list[str]:
        """Return a command that is not to be refused: while bundles come and go, none that names one."""
        if not Store(self.settings["store"]).exists("STORE.json"):
            return self.ingest()
        is_still = "train" not in self.followers
        has_bundle = is_still and bool(self._versions())
        choices: dict[Callable[[], list[str]], int] = {
            self.ingest: 5,
            self.train: 5 * is_still,
            self.forget: 1,
            self.retire: 1,
            self.rebuild: 1,
            self.verify: 1,
            self.inspect: 1,
            self.export: has_bundle,
            self.promote: has_bundle,
            self.replay: has_bundle and self.done.repeatable,
        }
        [chosen] = self.rng.choices(list(choices), [*choices.values()])
        return chosen()

    def _versions(self) -> list[str]:
        log = BundleLog(Store(self.settings["store"]))
        return [manifest.version for manifest in log.manifests() if manifest.variant == "main"]

    def ingest(self) -> list[str]:
        for _ in range(self.rng.choice([0, 1, 1, 2]) if self.done.parts else 1):
            write_part(self.folder, self.done.parts)
            self.done.parts += 1
        return [] if "ingest" in self.followers else ["ingest"]

    def follow(self) -> None:
        """Start followers, and end them."""
        for name in ("ingest", "train"):
            if name in self.followers and self.rng.random() < 0.3:
                self.note(self.followers.pop(name), stop=self.rng.choice([signal.SIGKILL, signal.SIGTERM]))
            elif name not in self.followers and self.done.parts and self.rng.random() < 0.15:
                changes = self.exports() if name == "train" else []
                self.followers[name] = self.start([name, "--follow", *changes])

    def start(self, arguments: list[str]) -> Command:
        """Start a command beside."""
        self.done.started += 1
        out = self.folder / f"said-{self.done.started}.txt"
        child = fork(partial(run, [*arguments, "--config", str(self.folder / "weir.yaml")], out))
        return Command(arguments, child, out)

    def note(self, command: Command, longest: float = 0.0, stop: signal.Signals = signal.SIGKILL) -> None:
        """Wait for a command's end, stop it after the longest time, and note what became of it."""
        status = ended(command.process, longest, stop)
        if status is None and (longest == _WHOLE or stop != signal.SIGKILL):
            status = -signal.SIGKILL
        note = {"command": command.arguments, "status": status, "said": command.out.read_text(), **asdict(self.done)}
        with (self.folder / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(note) + "\n")

    def train(self) -> list[str]:
        ranks = ["--ranks", "2"] if self.rng.random() < 0.1 else []
        self.done.repeatable &= not ranks
        variants = list(self.settings["trainer"]["variants"])
        line = ["--variant", variants[0]] if variants and self.rng.random() < 0.4 else []
        return ["train", *ranks, *line, *self.exports()]

    def exports(self) -> Iterable[str]:
        changes = exports_of(self.rng)
        self.done.repeatable &= not changes["publish_bound"]
        return _set("trainer", changes)

    def forget(self) -> list[str]:
        who = [f"{GUESTS}{self.rng.randrange(self.done.parts + 1)}" for _ in range(self.rng.choice([1, 3]))]
        self.done.forgotten += who
        self.done.repeatable = False
        return ["forget", *(one for user in who for one in ("--user", user)), "--grace", GRACE]

    def retire(self) -> list[str]:
        self.done.repeatable = False
        return ["retire", "--older-than", f"{self.rng.choice([600, 1500])}s", "--grace", GRACE]

    def rebuild(self) -> list[str]:
        self.done.rebuilt += 1
        changes = {"window_seconds": self.rng.choice([60, 150, 400]), "user_shards": self.rng.choice([1, 2])}
        return rebuild(self.settings["store"], self.folder / f"rebuilt-{self.done.rebuilt}", changes)

    def export(self) -> list[str]:
        return ["export"]

    def promote(self) -> list[str]:
        return ["promote", self.rng.choice([self.rng.choice(self._versions()), "--unpin"])]

    def replay(self) -> list[str]:
        return ["replay-bundle", self._versions()[-1]]

    def verify(self) -> list[str]:
        return ["verify", *self.rng.choice([[], ["--quick"]])]

    def inspect(self) -> list[str]:
        return ["inspect", self.rng.choice(["windows", "bundles", "age", "variants"])]


def rebuild(store: str, to: Path, changes: dict[str, Any]) -> list[str]:
    """Return the command that rebuilds a store under other settings of the pipeline."""
    return ["rebuild", "--from", store, "--to", str(to), *_set("pipeline", changes)]


def _set(section: str, changes: dict[str, Any]) -> Iterable[str]:
    return [one for name, value in changes.items() for one in ("--set", f"{section}.{name}={value}")]


def run(arguments: list[str], out: Path) -> None:
    """Be a command, to its end; what it says goes to a file."""
    with out.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["weir", *arguments]
    try:
        weir()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))


def ended(child: int, longest: float, stop: signal.Signals) -> int | None:
    """Wait for a command's end, stop it after the longest time, and return its status; None where it was killed."""
    ends = time.monotonic() + longest
    while time.monotonic() < ends:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    if stop == signal.SIGTERM:
        os.kill(child, stop)
        return ended(child, _WHOLE, signal.SIGKILL)
    os.killpg(child, stop)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def main(folder: Path, seed: int, commands: int) -> None:
    """Let a store live for so many commands."""
    rng, settings = random.Random(seed), settings_of(folder, seed)
    (folder / "log").mkdir()
    (folder / "weir.yaml").write_text(yaml.safe_dump(settings))
    life = Life(folder, rng, settings)
    for _ in range(commands):
        describe(folder, rng, life.done.parts)
        life.follow()
        if arguments := life.command():
            life.note(life.start(arguments), rng.uniform(0, LONGEST) if rng.random() < 0.3 else _WHOLE)
        else:
            time.sleep(rng.uniform(0, LONGEST))
    for command in life.followers.values():
        life.note(command, stop=signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
