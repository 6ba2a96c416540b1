import copy
import errno
import inspect

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions, TypeOptions

from weir.contracts import CorruptArtefactError, UserError
from weir.pipelines.batch.run_once import _Options, _reason_of

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


class _Failing(beam.DoFn):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def process(self, element: int) -> None:
        try:
            raise FileNotFoundError(errno.ENOENT, "what was handled", "/another")
        except FileNotFoundError:
            # As a mistake in the handling would.
            raise self._error  # noqa: B904


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/file"), True),
        (PermissionError(errno.EACCES, "Permission denied", "/a/file"), True),
        (CorruptArtefactError("/a/file", "has 3 bytes"), True),
        (UserError("say it"), True),
        (KeyError("a mistake of ours"), False),
        (RuntimeError("a mistake of ours"), False),
    ],
)
def test_what_a_transform_raises_is_found_behind_what_beam_makes_of_it(error: Exception, is_told: bool) -> None:
    with pytest.raises(Exception) as raised, beam.Pipeline() as pipeline:  # noqa: PT011 - of any type
        _ = pipeline | beam.Create([1]) | beam.ParDo(_Failing(error))
    wrapped = raised.value
    found = _reason_of(wrapped) if isinstance(wrapped, RuntimeError) else wrapped
    if is_told:
        assert type(found) is type(error)
        assert str(found).startswith(str(error))
    else:
        assert not isinstance(found, OSError | UserError)


def test_what_another_process_raised_is_read_from_its_traceback() -> None:
    told = (
        "Traceback:\n  File x\nRuntimeError: OSError: [Errno 28] No space left on device: '/a: b' [while running 'W']"
    )
    found = _reason_of(RuntimeError(told))
    assert isinstance(found, OSError)
    assert (found.errno, found.strerror, found.filename) == (28, "No space left on device", "/a: b")
    assert _reason_of(RuntimeError("Traceback:\nValueError: odd")) is None
