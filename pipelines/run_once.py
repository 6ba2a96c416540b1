"""One run of the chain of transforms over a plan, by a Beam runner."""

from types import MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core

from weir.contracts import CorruptArtefactError, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.plan import RunPlan
from weir.pipelines.sources import Source, log_source

__all__ = ["run_once"]

T = TypeVar("T", bound=PipelineOptions)


class _Options(PipelineOptions):
    """Options that make each view once.

    Beam asks for views some 400 times per pipeline and parses all flags for each: a quarter of the time of a small run.
    """

    def view_as(self, cls: type[T]) -> T:
        views: dict[type[PipelineOptions], PipelineOptions] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]  # type: ignore[return-value]


def _keep_arguments() -> None:
    """Keep what Beam finds out about the arguments of a method: a third of the time of a small run.

    It asks for those of each method of each `DoFn` some nine times a run, and they never change.
    """
    inspected, known = core.get_function_args_defaults, WeakKeyDictionary[Any, tuple[list[str], list[Any]]]()

    def kept(function: Any) -> tuple[list[str], list[Any]]:
        if not isinstance(function, MethodType):
            return inspected(function)
        if (found := known.get(function.__func__)) is None:
            found = known[function.__func__] = inspected(function)
        names, defaults = found
        return list(names), list(defaults)

    core.get_function_args_defaults = kept  # type: ignore[assignment]


_keep_arguments()


def run_once(store: Store, config: PipelineConfig, plan: RunPlan, source: Source[Any] | None = None) -> None:
    """Run the chain over a plan and wait for its end."""
    # Given its options, Beam does not look at this process's own command line.
    options = _Options([f"--runner={config.runner}", *config.runner_options])
    try:
        with beam.Pipeline(options=options) as pipeline:
            readings = pipeline | "Partitions" >> beam.Create(plan.readings, reshuffle=False)
            _ = (source or log_source(config)).windows(readings, store, plan)
    except RuntimeError as error:
        # Beam wraps what a transform raises; a damaged file is to be named without its frame.
        if (damage := _damage_behind(error)) is None:
            raise
        raise damage from error


def _damage_behind(error: BaseException) -> CorruptArtefactError | None:
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, CorruptArtefactError):
        behind = behind.__cause__ or behind.__context__
    return behind
