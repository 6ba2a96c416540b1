"""Entry point of ``python -m weir`` and of the command ``weir``."""

import os
import sys
from typing import Final

__all__ = ["main"]

_ASKING: Final = ("query", "click")
"""Commands that only query a running server."""


def main() -> None:
    """Run the command line; Ctrl-C ends it quietly, even during imports."""
    try:
        from weir.cli.main import main as run  # noqa: PLC0415 - it takes some tenths of a second

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if sys.argv[1:2] and sys.argv[1] in _ASKING and isinstance(end.code, int | None):
            sys.stdout.flush()
            sys.stderr.flush()
            # gRPC's threads race with its shutdown: one command in sixteen was aborted after it had printed its answer.
            os._exit(end.code or 0)
        raise


if __name__ == "__main__":
    main()
