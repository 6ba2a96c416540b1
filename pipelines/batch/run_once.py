"""Make one run with a Beam runner, and raise the error of a transform if the user can act on it."""

import re
from traceback import format_exception_only
from types import MethodType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core

from weir.contracts import CorruptArtefactError, Store, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.sources.log import log_source
from weir.pipelines.sources.plan import RunPlan
from weir.pipelines.sources.source import Source

__all__ = ["run_once"]

T = TypeVar("T", bound=PipelineOptions)

_OS_ERROR: Final = re.compile(
    r"Error: \[Errno (?P<number>\d+)\] (?P<message>.*?)(: '(?P<file>.*)')?( \[while running '.*'\])?$"
)
"""An operating-system error in a traceback, as Beam prints it."""


class _Options(PipelineOptions):
    """Beam's pipeline options, with a cache of their views.

    Beam asks for views some 400 times per pipeline and parses all flags each time, which takes a quarter of the time of
    a small run.
    """

    def view_as(self, cls: type[T]) -> T:
        views: dict[type[PipelineOptions], PipelineOptions] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]  # type: ignore[return-value]


def _cache_arguments() -> None:
    """Cache Beam's inspection of method arguments, which takes a third of the time of a small run.

    Beam inspects each method of each `DoFn` some nine times per run, and the arguments never change.
    """
    inspect, cache = core.get_function_args_defaults, WeakKeyDictionary[Any, tuple[list[str], list[Any]]]()

    def cached(function: Any) -> tuple[list[str], list[Any]]:
        if not isinstance(function, MethodType):
            return inspect(function)
        if (arguments := cache.get(function.__func__)) is None:
            arguments = cache[function.__func__] = inspect(function)
        names, defaults = arguments
        return list(names), list(defaults)

    core.get_function_args_defaults = cached  # type: ignore[assignment]


_cache_arguments()


def run_once(store: Store, config: PipelineConfig, plan: RunPlan, source: Source[Any] | None = None) -> None:
    """Run the transforms on a plan and wait for their end; `source` is the log of the settings by default.

    Raises the `CorruptArtefactError`, `UserError` or `OSError` of a transform, and other errors as Beam wraps them.
    """
    # With explicit options, Beam ignores the command line of this process.
    options = _Options([f"--runner={config.runner}", *config.runner_options])
    try:
        with beam.Pipeline(options=options) as pipeline:
            readings = pipeline | "Partitions" >> beam.Create(plan.readings, reshuffle=False)
            _ = (source or log_source(config)).windows(readings, store, plan)
    except RuntimeError as error:
        # Beam wraps the exceptions of transforms: raise an error that the user can act on without the wrapper.
        if (reason := _reason_of(error)) is None:
            raise
        raise reason from error


def _reason_of(error: RuntimeError) -> UserError | OSError | None:
    """Return the error of a transform that Beam has wrapped, if the user can act on it; None for other errors."""
    chain: list[BaseException] = [error]
    while (behind := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(behind)
    damage = next((link for link in chain if isinstance(link, CorruptArtefactError)), None)
    raised = next((link for link in chain[1:] if str(error).startswith(format_exception_only(link)[-1].strip())), None)
    if damage is None and isinstance(raised, UserError | OSError):
        return raised
    return damage or _of_another_process(str(error))


def _of_another_process(text: str) -> OSError | None:
    """Return the operating-system error in the last line of a worker's traceback, None without one."""
    match = _OS_ERROR.search(text.strip().rpartition("\n")[2])
    return None if match is None else OSError(int(match["number"]), match["message"], match["file"])
