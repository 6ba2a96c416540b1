"""Validate: blocks of raw rows to valid interactions and dead letters."""

from collections.abc import Iterator
from typing import Any, Final

import apache_beam as beam

from weir.pipelines.element_coder import large
from weir.readers import Block, LogConfig, Validator

__all__ = ["DEAD", "Validate"]

large(Block)

DEAD: Final = "dead"
"""The tag of the dead letters (`Letters`)."""


class Validate(beam.DoFn):
    """`Block` to `ValidatedBlock`; the `Letters` of every block leave by the tag `DEAD`."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config

    def setup(self) -> None:
        """Build the decoder, which cannot be pickled."""
        self._validator = Validator(self._config)

    def process(self, element: Block) -> Iterator[Any]:
        """Validate one block."""
        valid, letters = self._validator.validate(element)
        yield beam.pvalue.TaggedOutput(DEAD, letters)
        yield valid
