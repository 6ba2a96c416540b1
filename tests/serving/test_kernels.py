import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir.serving import kernels

WARN = "import logging; logging.basicConfig(); from weir.serving.kernels import warn_of_old_kernel as warn; warn()"


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
