"""How long an event takes until an answer uses it, at most, under given settings, step by step."""

from typing import Final, NamedTuple

from weir.config import Settings
from weir.text import in_words, span

__all__ = ["Wait", "event_to_answer", "longest", "waits"]

_WORK_SECONDS: Final = 3.0
"""Seconds to commit, train, export and load a small model on busy cores (docs/stream.md, How fresh)."""


class Wait(NamedTuple):
    """A step between event and answer, and the longest time it takes, seconds."""

    part: str
    seconds: float


def waits(settings: Settings, *, engine: bool = False) -> list[Wait]:
    """Return the steps between an event and an answer that uses it, in order, each with its longest time.

    Steps that take no time under these settings are left out. With `engine` the log is read by `weir stream`, else by
    `weir ingest --follow`. Event time is assumed to pass like wall-clock time.
    """
    pipeline, trainer = settings.pipeline, settings.trainer
    window = pipeline.window_ms / 1000
    bundles = trainer.export_every_seconds or (trainer.export_every_windows - 1) * window
    read = (
        Wait("readers and checkpoint", settings.stream.poll_seconds + settings.stream.checkpoint_seconds)
        if engine
        else Wait("look at the log", pipeline.poll_seconds)
    )
    parts = [
        Wait("window", window),
        Wait("lateness", pipeline.allowed_lateness_seconds),
        read,
        Wait("look of the trainer", trainer.poll_seconds),
        Wait("bundles that wait for more windows", bundles),
        Wait("look of the server", settings.serving.poll_seconds),
        Wait("commit, training, bundle and load, as measured with a small model", _WORK_SECONDS),
    ]
    return [part for part in parts if part.seconds]


def longest(settings: Settings, *, engine: bool = False) -> float:
    """Return the longest time from an event to an answer that uses it, seconds; arguments as for `waits`."""
    return sum(wait.seconds for wait in waits(settings, engine=engine))


def event_to_answer(settings: Settings, *, engine: bool = False) -> str:
    """Return a line of text with the time from event to answer, and its steps."""
    parts, total = waits(settings, engine=engine), longest(settings, engine=engine)
    # An event in the middle of its window waits for half of it.
    half = total - parts[0].seconds / 2
    steps = " + ".join(f"{wait.part} {span(wait.seconds)}" for wait in parts)
    return f"event -> answer: about {in_words(total)} at most, {in_words(half)} for half of the events = {steps}"
