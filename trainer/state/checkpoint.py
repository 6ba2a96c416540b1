"""Checkpoints: the whole state, saved so that a killed run continues bit for bit.

``checkpoints/<name>/`` holds the tensors' bytes (`weir.trainer.state.tensor_files`) and, written last,
``CHECKPOINT.json`` (`weir.contracts.bundles.checkpoint`). A directory without this mark is incomplete and never read.
Every byte is verified before any tensor is used, and loading executes nothing. Most checkpoints are deltas
(`weir.trainer.state.checkpoint_chain`): a delta stores only the rows changed since its parent, and the parent is kept
as long as the delta.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from pydantic import ValidationError

from weir.contracts import CorruptArtefactError, FileEntry, Store, UserError, checksum
from weir.contracts.bundles.checkpoint import (
    CURRENT_FORMAT,
    WITH_USER_FEATURES,
    CheckpointFormatError,
    CheckpointMark,
    CheckpointRef,
    TensorEntry,
    checkpoint_names,
    mark_path,
    read_checkpoint_chain,
    read_checkpoint_mark,
)
from weir.contracts.commits.commit_log import CommitLog, LogMismatchError
from weir.contracts.storage.documents import write_document
from weir.trainer.items.rows import Reader, TableRows, no_rows
from weir.trainer.items.stored import placed
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint_chain import SavedChain, StoredLinks, lines_of_all
from weir.trainer.state.tensor_files import describe, flatten, write_tensors
from weir.trainer.state.trainer_state import SINCE, TrainerState

__all__ = ["CheckpointLog", "CheckpointMismatchError", "DamagedCheckpointError"]

logger = logging.getLogger(__name__)

_WRITE: Final = "write "
"""Prefix of rank 0's query to write embedding files; the checkpoint's name follows."""


class CheckpointMismatchError(UserError):
    """The newest checkpoint has other settings or another format; the message names them, with both values."""


class DamagedCheckpointError(CorruptArtefactError):
    """A file of the newest checkpoint is missing or corrupt; the message names it and how to continue."""

    hint = ""


@dataclass(frozen=True)
class CheckpointLog:
    """Saves, loads and removes the checkpoints of a store."""

    store: Store
    keep: int = 2

    def names(self) -> list[str]:
        """Return the names of complete checkpoints, oldest first."""
        return checkpoint_names(self.store)

    def save(self, state: TrainerState, workers: Workers) -> str:
        """Save the state, with the mark written by rank 0, and return the checkpoint's name; collective."""
        at = state.position
        name = f"{at.step:010d}-{at.sequence:08d}-{at.batch:08d}"
        workers.first(lambda: self._save(name, state), partial(self._answer, state))
        return name

    def _answer(self, state: TrainerState, question: str) -> None:
        """Join the collective that rank 0 asks for while it saves."""
        if question.startswith(_WRITE):
            self._write_embeddings(question.removeprefix(_WRITE), state)
        else:
            state.answer(question)

    def _save(self, name: str, state: TrainerState) -> None:
        """Write a checkpoint on rank 0, a delta if possible, and remove old checkpoints."""
        if name in self.names():
            return
        # A killed run may have left an incomplete checkpoint.
        self.store.remove(f"checkpoints/{name}")
        before, rows = self._before(state)
        if before is None:
            entry = self._write_whole(name, state)
        else:
            tensors = state.tensors_of(rows) | flatten({SINCE: state.since})
            files = write_tensors(self.store, f"checkpoints/{name}", tensors)
            entry = self._write_mark(name, state, describe(tensors), files, before.links[-1].checkpoint)
        checkpoint = CheckpointRef(name=name, checksum=entry.checksum)
        state.saved = (before or SavedChain(state.layout(), ())).extended(checkpoint, rows)
        state.touched.clear(Reader.CHECKPOINT)
        self._retire()

    def _before(self, state: TrainerState) -> tuple[SavedChain | None, TableRows]:
        """Return the chain that a delta would extend and the delta's rows; None for a full checkpoint."""
        delta = state.saved.continued(state.layout(), state.touched.rows(Reader.CHECKPOINT)) if state.saved else None
        if delta is None or not all(self._is_there(link.checkpoint) for link in delta[0].links):
            return None, no_rows()
        return delta

    def _is_there(self, checkpoint: CheckpointRef) -> bool:
        """Return whether a checkpoint is in this store, with the same content."""
        try:
            return checksum(self.store.read(mark_path(checkpoint.name))) == checkpoint.checksum
        except FileNotFoundError:
            return False

    def _write_whole(self, name: str, state: TrainerState) -> FileEntry:
        """Write a full checkpoint: each rank writes its embeddings, rank 0 all other parts."""
        shared = lines_of_all(state.table, state.counts, state.featured)
        tensors = state.tensors(besides=["embeddings", "table"]) | shared | flatten({SINCE: state.since})
        files = write_tensors(self.store, f"checkpoints/{name}", tensors)
        state.embeddings.workers.ask(f"{_WRITE}{name}")
        files += self._write_embeddings(name, state)
        embeddings = {f"embeddings.{line}": lines for line, lines in placed(state.embeddings).items()}
        return self._write_mark(name, state, describe({**tensors, **embeddings}), files)

    def _write_embeddings(self, name: str, state: TrainerState) -> tuple[FileEntry, ...]:
        """Write this rank's embeddings; return the files of all ranks in the order of lines. Collective."""
        workers, files = state.embeddings.workers, tuple[FileEntry, ...]()
        for line, lines in placed(state.embeddings).items():
            stem = f"tensors-{line}-{workers.rank:04d}"
            own = write_tensors(self.store, f"checkpoints/{name}", {line: lines}, stem=stem)
            files += tuple(chain.from_iterable(workers.objects(own)))
        return files

    def _write_mark(
        self,
        name: str,
        state: TrainerState,
        tensors: dict[str, TensorEntry],
        files: tuple[FileEntry, ...],
        parent: CheckpointRef | None = None,
    ) -> FileEntry:
        """Write the mark of a checkpoint, which completes the checkpoint."""
        at = state.position
        mark = CheckpointMark(
            format=CURRENT_FORMAT if state.featured_users is None else WITH_USER_FEATURES,
            step=at.step,
            sequence=at.sequence,
            batch=at.batch,
            trained_window=at.trained_window,
            trained_commit=state.trained_commit,
            settings=state.config.defining(),
            tensors=tensors,
            files=files,
            parent=parent,
        )
        return write_document(self.store, mark_path(name), mark)

    def continued(self, config: TrainerConfig, workers: Workers) -> TrainerConfig:
        """Return `config` with settings left at their defaults replaced by the newest checkpoint's values; collective.

        A new version of the software may change defaults; a store that it continues keeps the old ones.
        """
        newest = workers.broadcast(self.names()[-1:])
        if not newest:
            return config
        try:
            merged = config.continuing(read_checkpoint_mark(self.store, newest[0]).settings)
        except (CorruptArtefactError, FileNotFoundError, ValidationError):
            return config  # `load` raises the error, or the mismatch
        defaults, stored = config.defining(), merged.defining()
        for name in sorted(stored) if workers.is_first else ():
            if stored[name] != defaults[name]:
                logger.info("%s is %r, as in the checkpoint: the default is %r now", name, stored[name], defaults[name])
        return merged

    def require_log(self, log: CommitLog, workers: Workers) -> None:
        """Check that the newest checkpoint was trained on the windows of this log; collective.

        Raises `LogMismatchError` otherwise, which names the checkpoints to remove.
        """
        if (error := workers.broadcast(self._mismatch(log) if workers.is_first else None)) is not None:
            raise error

    def _mismatch(self, log: CommitLog) -> LogMismatchError | None:
        """Return the error of `require_log`; None if the newest checkpoint fits the log, or there is none."""
        newest: LogMismatchError | None = None
        names, gone = self.names(), list[str]()
        for name in reversed(names):
            try:
                mark = read_checkpoint_mark(self.store, name)
                log.require(self.store.path(mark_path(name)), mark.sequence - 1, mark.trained_commit)
            except (CorruptArtefactError, FileNotFoundError):
                if newest is None:
                    return None  # `load` says what is wrong with it
            except LogMismatchError as error:
                newest = newest or error
            else:
                break
            gone.append(name)
        if newest is None:
            return None
        if len(gone) == len(names):
            remedy = (
                f"remove {self.store.path('checkpoints/')}, and all windows that the log holds are trained on again"
            )
        else:
            folders = " and ".join(self.store.path(f"checkpoints/{name}") for name in sorted(gone))
            remedy = f"remove {folders} to continue from the one before"
        problem = f"{newest.problem}: the checkpoint was trained on other windows; {remedy}"
        return LogMismatchError(newest.reader, problem, newest.reason)

    def load(self, config: TrainerConfig, workers: Workers) -> TrainerState | None:
        """Return the newest complete state, or None if there is none; collective.

        Raises
        ------
        CheckpointMismatchError
            If the checkpoint has other settings than `config`, or another format.
        DamagedCheckpointError
            If a file of the checkpoint is missing or corrupt.
        """
        newest = workers.broadcast(self.names()[-1:])
        if not newest:
            return None
        (name,) = newest
        try:
            links = StoredLinks(self.store, tuple(read_checkpoint_chain(self.store, name)), workers)
            self._compare(name, links.marks[-1], config)
            state = TrainerState.restore(config, links.whole(), workers.device, links.deltas(), workers)
        except CheckpointFormatError as error:
            raise CheckpointMismatchError(str(error)) from error
        except CorruptArtefactError as error:
            raise DamagedCheckpointError(error.path, f"{error.problem}; {self._remedy(error.path, name)}") from error
        state.trained_commit = links.marks[-1].trained_commit
        logger.info("continue from checkpoint %s", name)
        if workers.is_first:
            state.saved = links.saved(state.layout())
        return state

    def _compare(self, name: str, mark: CheckpointMark, config: TrainerConfig) -> None:
        """Raise `CheckpointMismatchError` if a checkpoint was made with other settings."""
        saved, given = mark.settings, config.given()
        # Ignore settings that the checkpoint's version lacked and the user has not set: their default changes nothing.
        current = {key: value for key, value in config.defining().items() if key in saved or key in given}
        differences = _differences(saved, current)
        if differences:
            path = self.store.path(mark_path(name))
            remedy = "use the same settings, or another store, or remove its checkpoints/"
            raise CheckpointMismatchError(f"{path}: made with other settings: {'; '.join(differences)}; {remedy}")

    def _remedy(self, path: str, newest: str) -> str:
        """Return a sentence that names the checkpoints to remove: the one with the damaged file and its descendants."""
        names = self.names()
        damaged = path.removeprefix(self.store.path("checkpoints/")).partition("/")[0]
        lost = {name for name in names if damaged in self._ancestors(name)} | ({damaged} & set(names)) | {newest}
        remove = " and ".join(f"checkpoints/{name}" for name in sorted(lost))
        if lost == set(names):
            return f"remove {remove}, and all windows are trained on again"
        return f"remove {remove} to continue from the one before"

    def _ancestors(self, name: str) -> list[str]:
        """Return a checkpoint and its ancestors, as far as their marks are readable."""
        names = [name]
        with suppress(CorruptArtefactError, FileNotFoundError):
            while (parent := read_checkpoint_mark(self.store, names[-1]).parent) is not None:
                names.append(parent.name)
        return names

    def _retire(self) -> None:
        """Remove all checkpoints except the newest `keep` and their ancestors."""
        kept = {ancestor for name in self.names()[-self.keep :] for ancestor in self._ancestors(name)}
        for folder in {name.split("/")[1] for name in self.store.glob("checkpoints/*/*")} - kept:
            self.store.remove(mark_path(folder))
            self.store.remove(f"checkpoints/{folder}")


def _differences(saved: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """Return a text for each setting that differs, with both values."""
    absent = "absent"
    return [
        f"{name} was {saved.get(name, absent)!r} and is now {current.get(name, absent)!r}"
        for name in sorted(saved.keys() | current.keys())
        if saved.get(name, absent) != current.get(name, absent)
    ]
