"""An open file of the log that remembers whether its file system failed."""

from typing import Any, Self

__all__ = ["LogFile"]


class LogFile:
    """A file open for reading bytes; `failure` is what its file system raised, None as long as it has not.

    Decoders raise the same types as file systems do (`OSError` above all), but what a decoder raises will be raised
    at each reading, and is the file's fault, while what the file system raises may pass.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; all there are without it."""
        try:
            data: bytes = self._file.read(size)
        except Exception as error:
            self.failure = error
            # What an open file raises does not say which it is.
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                error.filename = getattr(self._file, "path", "the log")
            raise
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a place; return it, counted from the start."""
        try:
            return int(self._file.seek(offset, whence))
        except OSError as error:
            self.failure = error
            raise

    def tell(self) -> int:
        """Return the place, counted from the start."""
        return int(self._file.tell())

    def readable(self) -> bool:
        """Say that it can be read, for those who ask before they do."""
        return True

    def seekable(self) -> bool:
        """Say that it can seek."""
        return True

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return bool(self._file.closed)

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
