"""``python -m weir``, and the command ``weir``."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C ends it quietly from its first import on."""
    try:
        from weir.cli.main import main as run  # noqa: PLC0415 - it takes some tenths of a second

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
