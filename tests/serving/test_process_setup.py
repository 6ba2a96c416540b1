""""""

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from weir.serving import process_setup as kernels
from weir.serving.process_setup import allow_files, leave_out_departed

WARN = (
    "import logging; logging.basicConfig(); from weir.serving.process_setup import warn_of_old_kernel as warn; warn()"
)


def said(kernel: str) -> str:
    """Return the log of a process whose OpenBLAS has to use a kernel."""
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    done = subprocess.run([sys.executable, "-c", WARN], env=environment, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="this processor has no AVX2")
def test_an_old_kernel_is_named_with_the_variable_that_chooses_another() -> None:
    assert "kernel Prescott" in said("PRESCOTT")
    assert "OPENBLAS_CORETYPE=" in said("NEHALEM")


def test_a_kernel_with_avx2_is_not_worth_a_word() -> None:
    assert said("HASWELL") == ""


def test_a_processor_without_avx2_has_no_better_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    monkeypatch.setattr(kernels, "_WITHOUT_AVX2", frozenset({"haswell", "zen", "skylakex", "cooperlake"}))
    monkeypatch.setattr(kernels, "_flags", lambda: frozenset({"sse2"}))
    with caplog.at_level(logging.WARNING):
        kernels.warn_of_old_kernel()
    assert caplog.text == ""


def test_open_files_are_allowed_as_far_as_possible(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_files(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        assert not caplog.messages
        if hard != resource.RLIM_INFINITY:
            allow_files(hard + 1)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
            assert "raise `ulimit -n`" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_a_caller_who_has_left_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """In the words of gRPC's own handler of errors."""
    leave_out_departed()
    leave_out_departed()
    logger = logging.getLogger("grpc._cython.cygrpc")
    for error, words in (
        (ExecuteBatchError("Failed"), "ExecuteBatchError raised in core by servicer method [%s]"),
        (ValueError("a fault"), "Unexpected [ValueError] raised by servicer method [%s]"),
    ):
        try:
            raise error
        except Exception:
            logger.exception(words, "/Embed")
    assert caplog.messages == ["Unexpected [ValueError] raised by servicer method [/Embed]"]
