"""The life of a store: commands of ``weir`` in random order on a log that grows; three in ten are killed.

Now and then a pipeline or a trainer follows beside them, until it is killed, or asked to stop; and the store moves: it
is rebuilt under other settings beside, and the log goes on there.

``python -m tests.campaigns.store_lives FOLDER STORE LOG SEED COMMANDS`` notes in the folder's ``journal.jsonl`` how
each command ended; ``weir.yaml`` names the store as it is at the time.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import fsspec
import yaml

from tests.campaigns.life_log import GUESTS, describe, replace, write_part
from tests.campaigns.life_move import Move, options, rebuild
from tests.campaigns.life_process import WHOLE, Command, Seen, seen
from tests.campaigns.life_settings import Plan, exports_of, settings_of

LONGEST: Final = 1.0
"""Seconds after which a command is killed, at most; on an object store, four times as many."""
GRACE: Final = "10s"
"""How long files that were replaced stay for those who read them."""


@dataclass
class Done:
    """What has been done to a store: what may be done next depends on it."""

    parts: int = 0
    forgotten: list[str] = field(default_factory=list)
    retired: bool = False
    rebuilt: int = 0
    moved: int = 0
    since: float = 0.0
    """The second from which on the store has all events: where it has moved without windows that had retired."""
    started: int = 0
    repeatable: bool = True
    """Whether bundles can be made again: all windows are there as they were, one rank trained, and rows are not off."""


@dataclass
class Life:
    """A store in a folder, and what becomes of it."""

    folder: Path
    rng: random.Random
    settings: dict[str, Any]
    done: Done = field(default_factory=Done)
    followers: dict[str, Command] = field(default_factory=dict)
    """Pipelines and trainers that run beside, by their command."""
    move: Move | None = None

    def command(self) -> list[str]:
        """Return a command that is not to be refused: while bundles come and go, none that names one."""
        found = self._seen()
        if not found.is_there:
            return self.ingest()
        if self.move is not None and self.move.is_cutting:
            return self.go_on()
        is_still = "train" not in self.followers
        has_bundle = is_still and bool(found.versions)
        choices: dict[Callable[[], list[str]], int] = {
            self.ingest: 5,
            self.train: 5 * is_still,
            self.forget: 1,
            self.retire: 1,
            self.rebuild: 1,
            self.go_on: 3 if self.move is None else 6,
            self.verify: 1,
            self.inspect: 1,
            self.export: has_bundle,
            partial(self.promote, found.versions): has_bundle,
            partial(self.replay, found.versions): has_bundle and self.done.repeatable,
        }
        [chosen] = self.rng.choices(list(choices), [*choices.values()])
        return chosen()

    def _seen(self) -> Seen:
        return seen(self.folder, self.settings["store"])

    def go_on(self) -> list[str]:
        """Return the next step of a move."""
        if self.move is None:
            self.done.moved += 1
            store, log = self.settings["store"], self.settings["pipeline"]["log"]
            self.move = Move.drawn(self.rng, store, f"{store.rstrip('0123456789')}{self.done.moved}", log)
        there = seen(self.folder, self.move.to)
        return self.move.command(self.rng, is_there=there.is_there, has_bundle=bool(there.versions))

    def arrive_if_complete(self) -> None:
        """Let the life go on in the store to which it has moved."""
        if self.move is not None and self.move.is_complete:
            self._arrive(self.move)

    def _arrive(self, move: Move) -> None:
        if move.log:
            self.done.since = 0.0
        elif self.done.retired:
            self.done.since = max(self.done.since, self._seen().first_end)
        self.stop()
        self.settings["store"], self.move, self.done.repeatable = move.to, None, False
        self.settings["pipeline"].update(move.changes)
        self.write_settings()

    def write_settings(self) -> None:
        """Write the settings as they are."""
        replace(self.folder / "weir.yaml", [yaml.safe_dump(self.settings)])

    def ingest(self) -> list[str]:
        for _ in range(self.rng.choice([0, 1, 1, 2]) if self.done.parts else 1):
            write_part(self.settings["pipeline"]["log"], self.done.parts)
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

    def stop(self) -> None:
        """End all followers."""
        for command in self.followers.values():
            self.note(command, stop=signal.SIGTERM)
        self.followers.clear()

    def start(self, arguments: list[str]) -> Command:
        """Start a command beside."""
        self.done.started += 1
        return Command.started(self.folder, self.done.started, arguments)

    def note(self, command: Command, longest: float = 0.0, stop: signal.Signals = signal.SIGKILL) -> None:
        """Wait for a command's end, stop it after the longest time, and note what became of it."""
        note = command.ended(longest, stop) | asdict(self.done)
        with (self.folder / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(note) + "\n")
        if self.move is not None:
            self.move.note(command.arguments, note["status"])

    def train(self) -> list[str]:
        ranks = ["--ranks", "2"] if self.rng.random() < 0.1 else []
        self.done.repeatable &= not ranks
        variants = list(self.settings["trainer"]["variants"])
        line = ["--variant", variants[0]] if variants and self.rng.random() < 0.4 else []
        return ["train", *ranks, *line, *self.exports()]

    def exports(self) -> Iterable[str]:
        changes = exports_of(self.rng)
        self.done.repeatable &= not changes["publish_bound"]
        return options("trainer", changes)

    def forget(self) -> list[str]:
        who = [f"{GUESTS}{self.rng.randrange(self.done.parts + 1)}" for _ in range(self.rng.choice([1, 3]))]
        self.done.forgotten += who
        self.done.repeatable = False
        if self.move is not None and not self.move.log:
            self.move = None  # its rebuild would have to start again in a new folder
        return ["forget", *(one for user in who for one in ("--user", user)), "--grace", GRACE]

    def retire(self) -> list[str]:
        self.done.repeatable, self.done.retired = False, True
        return ["retire", "--older-than", f"{self.rng.choice([600, 1500])}s", "--grace", GRACE]

    def rebuild(self) -> list[str]:
        self.done.rebuilt += 1
        changes = {"window_seconds": self.rng.choice([60, 150, 400]), "user_shards": self.rng.choice([1, 2])}
        return rebuild(self.settings["store"], f"{self.settings['store']}-rebuilt-{self.done.rebuilt}", changes)

    def export(self) -> list[str]:
        return ["export"]

    def promote(self, versions: list[str]) -> list[str]:
        return ["promote", self.rng.choice([self.rng.choice(versions), "--unpin"])]

    def replay(self, versions: list[str]) -> list[str]:
        return ["replay-bundle", versions[-1]]

    def verify(self) -> list[str]:
        return ["verify", *self.rng.choice([[], ["--quick"]])]

    def inspect(self) -> list[str]:
        return ["inspect", self.rng.choice(["windows", "bundles", "age", "variants"])]


def main(plan: Plan) -> None:
    """Let a store live."""
    rng, folder = random.Random(plan.seed), plan.folder
    fsspec.get_filesystem_class(fsspec.core.split_protocol(plan.store)[0] or "file")  # commands import it
    life = Life(folder, rng, settings_of(plan))
    life.write_settings()
    longest = LONGEST * (4 if plan.is_remote else 1)
    for _ in range(plan.commands):
        describe(folder, rng, life.done.parts)
        life.follow()
        if arguments := life.command():
            life.note(life.start(arguments), rng.uniform(0, longest) if rng.random() < 0.3 else WHOLE)
        else:
            time.sleep(rng.uniform(0, longest))
        life.arrive_if_complete()
    life.stop()
    while life.move is not None and life.move.is_cutting:
        life.note(life.start(life.go_on()), WHOLE)
        life.arrive_if_complete()
    (folder / "done.json").write_text(json.dumps(asdict(life.done)))


if __name__ == "__main__":
    main(Plan.of(sys.argv[1:]))
