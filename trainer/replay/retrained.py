"""Retrain the state of a bundle from its windows."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from weir.contracts import (
    BundleLog,
    BundleManifest,
    CommitLog,
    CorruptArtefactError,
    FileEntry,
    RetiredError,
    Store,
    UserError,
    WindowLog,
    WindowManifest,
)
from weir.contracts.commits import LogMismatchError
from weir.contracts.recipe import Recipe
from weir.contracts.variants import version_of
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.model import Position
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver, TrainProgress

__all__ = ["ReplayError", "check_source", "recipe_of", "retrained"]

_NEVER: Final = 2**62


class ReplayError(UserError):
    """A bundle cannot be made again, or not be compared; the message says what is missing."""

    @classmethod
    def damaged(cls, version: str, error: CorruptArtefactError) -> "ReplayError":
        """Return the error for a file without which a bundle is not made again."""
        return cls(f"{error}: without this file {version} cannot be made again and compared; restore it from a copy")


@dataclass(frozen=True)
class _Until:
    """Stop signal after a number of steps: a bundle may be from the middle of a window."""

    position: Position
    steps: int

    @property
    def requested(self) -> bool:
        return self.position.step + 1 >= self.steps


def _step_of(manifest: BundleManifest) -> int:
    """Return the number of steps of a bundle; raises `ReplayError` for a name in another format."""
    parts = manifest.version.removesuffix(version_of("", manifest.variant)).split("-")
    if len(parts) != 3 or not parts[1].isdigit():
        raise ReplayError(f"{manifest.version} is no name that the trainer gives; expected <window>-<step>-<digest>")
    return int(parts[1])


def recipe_of(manifest: BundleManifest) -> Recipe:
    """Return the recipe of a bundle.

    Raises
    ------
    ReplayError
        If its manifest has none, or the numbers of ranks or threads changed: the order of sums is then not repeatable.
    """
    recipe = manifest.recipe
    if recipe is None or not recipe.stretches:
        raise ReplayError(f"{manifest.version} cannot be made again: its manifest does not say how it was trained")
    if len({(one.ranks, one.threads) for one in recipe.stretches}) > 1:
        counts = ", ".join(f"{one.ranks} x {one.threads} from step {one.step}" for one in recipe.stretches)
        raise ReplayError(
            f"{manifest.version} was trained by other numbers of ranks x threads ({counts}): not repeatable"
        )
    return recipe


def check_source(store: Store, log: BundleLog, manifest: BundleManifest, recipe: Recipe) -> None:
    """Check, before any training, that the files of a bundle are what manifests say, and that its windows are there.

    Raises `ReplayError`.
    """
    version, first = manifest.version, recipe.stretches[0].sequence
    try:
        for part in log.chain(manifest):
            for entry in part.files:
                name = f"{part.folder}/{entry.name}"
                _compare(log.store, name, entry)
        CommitLog(store).require(f"bundle {version}", manifest.trained_sequence, manifest.trained_commit)
        gone = _first_retired(store, first, manifest.trained_sequence)
    except CorruptArtefactError as error:
        raise ReplayError.damaged(version, error) from error
    except LogMismatchError as error:
        raise ReplayError(f"{version} cannot be made again from other windows than its own: {error.problem}") from error
    if gone is not None:
        raise _retired(version, first, gone)


def _first_retired(store: Store, first: int, last: int) -> int | None:
    """Return the first retired pane of some; None if all remain."""
    expected = first
    try:
        for pane in WindowLog(store).follow(first - 1):
            if pane.sequence != expected or expected > last:
                break
            expected += 1
    except RetiredError:
        pass
    return None if expected > last else expected


def _compare(store: Store, name: str, entry: FileEntry) -> None:
    try:
        found = store.digest(name)
    except FileNotFoundError:
        raise CorruptArtefactError(store.path(name), "the manifest lists it, but it is missing") from None
    if found != entry.checksum:
        raise CorruptArtefactError(store.path(name), f"has checksum {found}, the manifest says {entry.checksum}")


def _retired(version: str, first: int, pane: int) -> ReplayError:
    return ReplayError(
        f"{version} was trained from pane {first} on, and pane {pane} has retired: it cannot be made again"
    )


def retrained(
    store: Store,
    manifest: BundleManifest,
    recipe: Recipe,
    workers: Workers,
    report: Callable[[TrainProgress], None] | None = None,
) -> TrainerState:
    """Train again up to the step of a bundle; the store is only read.

    Raises
    ------
    ReplayError
        If windows were removed, this version does not accept the settings, or training ends at another position.
    """
    steps, first = _step_of(manifest), recipe.stretches[0].sequence
    try:
        config = TrainerConfig.model_validate(recipe.settings | {"checkpoint_every_steps": _NEVER})
    except ValidationError as error:
        raise ReplayError(f"{manifest.version}: this version does not know its settings: {error}") from error
    state = TrainerState.fresh(config, workers.device, workers=workers)
    state.position.sequence = first
    with tempfile.TemporaryDirectory(prefix="weir-replay-") as folder:
        scratch = Store(folder)
        observer = ProgressObserver(scratch, TrainerMetrics(), workers.is_first, report)
        until = _Until(state.position, steps)
        learner = Learner(state, WindowLog(store), workers, until, observer, CheckpointLog(scratch))
        _learn(learner, first, manifest)
    at = state.position
    if (at.trained_sequence, at.step) != (manifest.trained_sequence, steps):
        raise ReplayError(
            f"{manifest.version}: training comes to step {at.step} of window {at.trained_sequence}, not to step "
            f"{steps} of window {manifest.trained_sequence}: the windows are others now"
        )
    return state


def _learn(learner: Learner, first: int, manifest: BundleManifest) -> None:
    """Process the windows from the first one to the bundle's."""
    after = first - 1
    while after < manifest.trained_sequence:
        try:
            found = learner.log.next(after)
        except RetiredError as error:
            raise _retired(manifest.version, first, after + 1) from error
        except CorruptArtefactError as error:
            raise ReplayError.damaged(manifest.version, error) from error
        if not found:
            return
        for window in found:
            after += 1
            if after > manifest.trained_sequence:
                return
            if window.sequence != after:
                raise _retired(manifest.version, first, after)
            _process(learner, window, manifest)


def _process(learner: Learner, window: WindowManifest, manifest: BundleManifest) -> None:
    try:
        learner.process_window(window)
    except CorruptArtefactError as error:
        raise ReplayError.damaged(manifest.version, error) from error
