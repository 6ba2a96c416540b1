"""Reproduce a stored bundle: repeat its training and compare the result bit for bit."""

from collections.abc import Callable

import torch
from pydantic import Field

from weir.contracts import BundleManifest, LogState, Store
from weir.contracts.models import FrozenModel
from weir.contracts.recipe import Recipe
from weir.contracts.variants import log_of_version
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.replay.compare import differences
from weir.trainer.replay.retrained import ReplayError, check_source, recipe_of, retrained
from weir.trainer.state.stretches import software
from weir.trainer.stream.progress import TrainProgress

__all__ = ["Replay", "replay_bundle"]


class Replay(FrozenModel):
    """Result: without `differences` the bundles are bit-identical; `reasons` may explain differences."""

    version: str
    windows: int = Field(description="windows trained on again")
    steps: int
    items: int
    differences: tuple[str, ...]
    reasons: tuple[str, ...]


def replay_bundle(store: Store, wanted: str, report: Callable[[TrainProgress], None] | None = None) -> Replay | None:
    """Reproduce a bundle with this process's ranks; returns None on all ranks except the first.

    Raises
    ------
    ReplayError
        If it cannot be made again: a file of it or a window is damaged, retired or another one.
    FileNotFoundError
        If the bundle does not exist.
    CorruptArtefactError
        If the manifest of the bundle is damaged.
    """
    manifest = log_of_version(store, wanted).manifest(wanted)
    recipe = recipe_of(manifest)
    first = recipe.stretches[0]
    with deterministic(), Workers.from_environment(first.device) as workers:
        if workers.world_size != first.ranks:
            raise ReplayError(f"{wanted} was trained by {first.ranks} ranks, here are {workers.world_size}")
        torch.set_num_threads(first.threads)
        log = log_of_version(store, wanted)
        check_source(store, log, manifest, recipe)
        state = retrained(store, manifest, recipe, workers, report)
        found = list[str]()
        workers.first(lambda: found.extend(differences(log, manifest, state)), state.answer)
        if not workers.is_first:
            return None
        return Replay(
            version=wanted,
            windows=state.position.trained_sequence - first.sequence + 1,
            steps=state.position.step,
            items=len(state.table),
            differences=tuple(found),
            reasons=_reasons(store, manifest, recipe) if found else (),
        )


def _reasons(store: Store, manifest: BundleManifest, recipe: Recipe) -> tuple[str, ...]:
    """Return what has changed since the bundle was made and may explain differences."""
    here = software()
    found = [
        f"{name} is {here.get(name, 'not here')}, from step {one.step} on it was {then}"
        for one in recipe.stretches
        for name, then in sorted(one.software.items())
        if here.get(name) != then
    ]
    if LogState.open(store).redacted_at > manifest.created_at:
        found.append("users were forgotten since: the windows hold less now")
    if any(one.device == "cuda" for one in recipe.stretches):
        found.append("it was trained on a GPU, where the order of some sums is not fixed")
    if recipe.settings["publish_bound"]:
        found.append("publish_bound lets rows be off by a bound since they were last published")
    return tuple(found)
