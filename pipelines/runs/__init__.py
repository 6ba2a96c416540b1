"""The state of a run: its registration, progress, pending rows, watermark and the owners of item keys."""
