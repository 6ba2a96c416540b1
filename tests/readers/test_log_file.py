import errno
import io

import pytest

from weir.readers.log_file import LogFile


class Failing(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")


def test_it_reads_and_closes_what_it_is_given() -> None:
    inner = io.BytesIO(b"abcdef")
    with LogFile(inner) as file:
        assert (file.readable(), file.seekable(), file.closed) == (True, True, False)
        assert (file.seek(2), file.read(2), file.tell(), file.read()) == (2, b"cd", 4, b"ef")
        assert file.failure is None
    assert inner.closed
    assert file.closed


def test_it_remembers_what_its_file_system_raised() -> None:
    file = LogFile(Failing(b"abc"))
    with pytest.raises(OSError, match="Stale") as stale:
        file.seek(1)
    assert file.failure is stale.value
    file = LogFile(io.BytesIO(b"abc"))
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert isinstance(file.failure, ValueError)
