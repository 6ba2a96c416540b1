import copy
import inspect

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions, TypeOptions

from weir.pipelines.run_once import _Options

FLAGS = ["--runner=PrismRunner", "--direct_num_workers=3", "--no_pipeline_type_check"]


def test_views_that_are_kept_say_what_new_ones_would() -> None:
    kept, plain = _Options(FLAGS), PipelineOptions(FLAGS)
    for view in (StandardOptions, DirectOptions, TypeOptions):
        assert kept.view_as(view) is kept.view_as(view)
        assert kept.view_as(view).get_all_options() == plain.view_as(view).get_all_options()
    assert kept.get_all_options() == plain.get_all_options()


def test_a_change_is_seen_by_all_views_of_its_options_and_by_no_copy() -> None:
    kept = _Options(FLAGS)
    kept.view_as(DirectOptions)
    copied = copy.deepcopy(kept)
    copied.view_as(StandardOptions).runner = "DirectRunner"
    copied.view_as(DirectOptions).direct_num_workers = 2
    assert copied.view_as(TypeOptions).get_all_options()["runner"] == "DirectRunner"
    assert copied.get_all_options()["direct_num_workers"] == 2
    assert (kept.view_as(StandardOptions).runner, kept.view_as(DirectOptions).direct_num_workers) == ("PrismRunner", 3)


class _Counting(beam.DoFn):
    def process(self, element: int, timestamp: object = beam.DoFn.TimestampParam) -> None:
        """Has another signature than the method that it replaces."""


def test_signatures_that_are_noted_are_those_of_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (beam.DoFn.process, beam.DoFn.start_bundle, beam.DoFn.get_type_hints, _Counting.process):
        noted = inspect.signature(method)
        monkeypatch.delattr(method, "__signature__", raising=False)
        assert noted == inspect.signature(method)
    assert list(inspect.signature(_Counting().process).parameters) == ["element", "timestamp"]
