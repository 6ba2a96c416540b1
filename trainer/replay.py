"""Replay of a bundle: train again on its windows, and compare the result with the stored bundle bit for bit."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, ValidationError

from weir.contracts import (
    BundleFile,
    BundleLog,
    BundleManifest,
    CommitLog,
    CorruptArtefactError,
    FileEntry,
    LogState,
    RetiredError,
    Store,
    UserError,
    WindowLog,
    WindowManifest,
)
from weir.contracts.base.models import FrozenModel
from weir.contracts.bundles.manifest import Recipe
from weir.contracts.bundles.rows import FIRST_ITEM_ROW
from weir.contracts.bundles.variants import log_of_version, version_of
from weir.contracts.commits.commit_log import LogMismatchError
from weir.trainer.export.content import Content
from weir.trainer.export.onnx_models import scorer_to_onnx, tower_to_onnx
from weir.trainer.export.servable import Servable
from weir.trainer.items.rows import SHARED
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.progress import software
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.model import Position
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver, TrainProgress

__all__ = ["Replay", "ReplayError", "check_source", "differences", "recipe_of", "replay_bundle", "retrained"]


Floats = npt.NDArray[np.float32]


_NEVER: Final = 2**62


def differences(log: BundleLog, manifest: BundleManifest, state: TrainerState) -> list[str]:
    """Return a sentence for each part of a stored bundle that differs in a bit from the bundle of a state.

    Raises
    ------
    CorruptArtefactError
        If the stored bundle is damaged.
    """
    content = Content.of(state)
    problems = _of_items(Servable.open(log, manifest), content)
    if log.read(manifest, BundleFile.TOWER) != tower_to_onnx(state.tower, state.config.tower):
        problems.append("the user tower differs")
    if state.second is not None and log.read(manifest, BundleFile.SCORER) != scorer_to_onnx(state.second.scorer):
        problems.append("the scorer differs")
    users = state.featured_users
    if users is not None and log.read(manifest, BundleFile.USER_FEATURES) != users.weights.encode():
        problems.append("what user features say differs")
    if (version := version_of(content.version, manifest.variant)) != manifest.version:
        problems.append(f"the state differs: its bundle would be named {version}")
    return problems


def _of_items(stored: Servable, content: Content) -> list[str]:
    """Return sentences on differences between the stored items and the items of a content."""
    rows = stored.rows.live
    keys = stored.rows.keys[rows]
    places = content.state.table.rows(keys)
    here = places != SHARED
    problems = _counted(int((~here).sum()), "items are not in the table any more")
    problems += _counted(len(content.rows) - int(here.sum()), "items of the table are not stored")
    own = np.searchsorted(content.rows, places[here])
    special = np.arange(FIRST_ITEM_ROW)
    embeddings = (
        np.concatenate([stored.rows.embeddings[special], stored.rows.embeddings[rows[here] + FIRST_ITEM_ROW]]),
        np.concatenate([content.embeddings[special], content.embeddings[own + FIRST_ITEM_ROW]]),
    )
    problems += _unequal("embeddings", *embeddings)
    return problems + _unequal("vectors", stored.rows.vectors[rows[here]], content.vectors[own])


def _counted(number: int, what: str) -> list[str]:
    return [f"{number:,} {what}"] if number else []


def _unequal(name: str, stored: Floats, made: Floats) -> list[str]:
    """Return a sentence with the number of rows (n, d) that differ in a bit, and the largest distance, if any."""
    other = (stored.view(np.uint32) != made.view(np.uint32)).any(axis=1)
    if not other.any():
        return []
    off = float(np.linalg.norm(stored[other] - made[other], axis=1).max())
    return [f"{int(other.sum()):,} of {len(stored):,} {name} differ, by {off:.3g} at most"]


class ReplayError(UserError):
    """A bundle cannot be made again or compared; the message says what is missing."""

    @classmethod
    def damaged(cls, version: str, error: CorruptArtefactError) -> "ReplayError":
        """Return the error for a damaged file that the replay needs."""
        return cls(f"{error}: without this file {version} cannot be made again and compared; restore it from a copy")


@dataclass(frozen=True)
class _Until:
    """Stop signal for training after a number of steps, since a bundle may be from the middle of a window."""

    position: Position
    steps: int

    def is_set(self) -> bool:
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
        If the manifest has no recipe, or the numbers of ranks or threads changed, which changes the order of sums.
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
    """Check before training that a bundle's files agree with their manifests, and that its windows still exist.

    Raises `ReplayError` otherwise.
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
    """Return the number of the first pane from `first` to `last` that was removed; None if all remain."""
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
    """Raise `CorruptArtefactError` if a file is missing or differs from its entry."""
    try:
        digest = store.digest(name)
    except FileNotFoundError:
        raise CorruptArtefactError(store.path(name), "the manifest lists it, but it is missing") from None
    if digest != entry.checksum:
        raise CorruptArtefactError(store.path(name), f"has checksum {digest}, the manifest says {entry.checksum}")


def _retired(version: str, first: int, pane: int) -> ReplayError:
    """Return the error for a removed pane."""
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
            panes = learner.log.next(after)
        except RetiredError as error:
            raise _retired(manifest.version, first, after + 1) from error
        except CorruptArtefactError as error:
            raise ReplayError.damaged(manifest.version, error) from error
        if not panes:
            return
        for window in panes:
            after += 1
            if after > manifest.trained_sequence:
                return
            if window.sequence != after:
                raise _retired(manifest.version, first, after)
            _process(learner, window, manifest)


def _process(learner: Learner, window: WindowManifest, manifest: BundleManifest) -> None:
    """Process a window; raises `ReplayError` for a damaged file."""
    try:
        learner.process_window(window)
    except CorruptArtefactError as error:
        raise ReplayError.damaged(manifest.version, error) from error


class Replay(FrozenModel):
    """Result of a replay: bit-identical if `differences` is empty; `reasons` may explain the differences."""

    version: str
    windows: int = Field(description="windows trained on again")
    steps: int
    items: int
    differences: tuple[str, ...]
    reasons: tuple[str, ...]


def replay_bundle(store: Store, version: str, report: Callable[[TrainProgress], None] | None = None) -> Replay | None:
    """Train a bundle again with the ranks of this process group, and compare; None on all ranks except the first.

    Raises
    ------
    ReplayError
        If the bundle cannot be made again, because a file or a window is damaged, removed or different.
    FileNotFoundError
        If the bundle does not exist.
    CorruptArtefactError
        If the manifest of the bundle is damaged.
    """
    manifest = log_of_version(store, version).manifest(version)
    recipe = recipe_of(manifest)
    first = recipe.stretches[0]
    with deterministic(), Workers.from_environment(first.device) as workers:
        if workers.world_size != first.ranks:
            raise ReplayError(f"{version} was trained by {first.ranks} ranks, here are {workers.world_size}")
        torch.set_num_threads(first.threads)
        log = log_of_version(store, version)
        check_source(store, log, manifest, recipe)
        state = retrained(store, manifest, recipe, workers, report)
        problems = list[str]()
        workers.first(lambda: problems.extend(differences(log, manifest, state)), state.answer)
        if not workers.is_first:
            return None
        return Replay(
            version=version,
            windows=state.position.trained_sequence - first.sequence + 1,
            steps=state.position.step,
            items=len(state.table),
            differences=tuple(problems),
            reasons=_reasons(store, manifest, recipe) if problems else (),
        )


def _reasons(store: Store, manifest: BundleManifest, recipe: Recipe) -> tuple[str, ...]:
    """Return what has changed since the bundle was made and may explain differences."""
    here = software()
    reasons = [
        f"{name} is {here.get(name, 'not here')}, from step {stretch.step} on it was {then}"
        for stretch in recipe.stretches
        for name, then in sorted(stretch.software.items())
        if here.get(name) != then
    ]
    if LogState.open(store).redacted_at > manifest.created_at:
        reasons.append("users were forgotten since: the windows hold less now")
    if any(stretch.device == "cuda" for stretch in recipe.stretches):
        reasons.append("it was trained on a GPU, where the order of some sums is not fixed")
    if recipe.settings["publish_bound"]:
        reasons.append("publish_bound lets rows be off by a bound since they were last published")
    return tuple(reasons)
