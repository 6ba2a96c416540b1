"""Validate: blocks of raw rows to batches of interactions; what does not pass becomes dead letters."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contracts import INTERACTION_SCHEMA, MAX_ID_BYTES, Label, columns, interaction_schema
from pipelines.arrow_columns import not_utf8
from pipelines.blocks import Batch, Block, Letters, Lines, Rows
from pipelines.config import PipelineConfig
from pipelines.decode import Decoded, Faults, LineDecoder, decode_rows
from pipelines.faults import DeadLetter, Fault, Reason
from pipelines.item_features import faults_of, with_features
from pipelines.sources import printable

__all__ = ["DEAD", "MAX_TOKEN_BYTES", "Validate", "Validator"]

logger = logging.getLogger(__name__)

Bool = npt.NDArray[np.bool_]

DEAD: Final = "dead"
"""The tag of the dead letters (`Letters`)."""

MAX_TOKEN_BYTES: Final = 4096
_END_OF_DATES: Final = datetime(9999, 12, 31, tzinfo=UTC)
_TRIES: Final = 64
"""How often a block that cannot be validated is halved: enough to single out a few rows among 65,536."""
_REFUSED: Final = 2
"""Stands among the labels for a type that is refused; no `Label` has it."""


@dataclass
class _Verdict:
    """Which rows pass; the first fault found in a row is the one that is told."""

    passed: Bool
    faults: dict[int, Fault] = field(default_factory=dict)

    def refuse(self, wrong: Bool, reason: Reason, detail: Callable[[int], str]) -> None:
        """Refuse the rows marked in `wrong`, with a sentence about each."""
        for row in np.flatnonzero(wrong & self.passed).tolist():
            self.faults[row] = Fault(reason, detail(row))
        self.passed &= ~wrong


class Validator:
    """Checks blocks against the contract and the settings; knows nothing of Beam."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._names = config.columns.model_dump()
        self._lines = LineDecoder(config.columns, config.timestamp_unit, config.item_features)
        self._labels = config.labels()
        self._min_ms = round(config.min_time.timestamp() * 1000)
        self._max_ms = round((config.max_time or _END_OF_DATES).timestamp() * 1000)

    def validate(self, block: Block) -> tuple[Batch, Letters]:
        """Return a block's interactions and its dead letters; nothing that a block holds raises."""
        schema = interaction_schema(self._config.item_features)
        faults, tables, pending, tries = list(block.faults), [schema.empty_table()], [block.content], _TRIES
        while pending:
            content = pending.pop()
            if content is None or not len(content.positions):
                continue
            try:
                rows, refused = self._validate(content, block.latest_ms)
            except Exception as error:
                if tries and len(content.positions) > 1:
                    tries -= 1
                    pending += _halves(content)
                    continue
                logger.exception("%s: a block cannot be validated", printable(block.id.partition))
                rows, refused = tables[0], [_unreadable(content, error)]
            tables.append(rows)
            faults += refused
        letters = tuple(
            DeadLetter.of(block.id.partition, *fault) for fault in sorted(faults, key=lambda fault: fault[0])
        )
        batch = pa.concat_tables(tables).combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema)]
        return Batch(block.id, batch[0], len(letters), block.stop), Letters(block.id, letters)

    def _validate(self, content: Lines | Rows, latest_ms: int | None) -> tuple[pa.Table, Faults]:
        decoded = self._decode(content)
        if isinstance(decoded, Fault):
            schema = interaction_schema(self._config.item_features)
            return schema.empty_table(), [(int(content.positions[0]), decoded, b"")]
        return self._check(decoded, latest_ms)

    def _decode(self, content: Lines | Rows) -> Decoded | Fault:
        if isinstance(content, Lines):
            return self._lines.decode(content)
        return decode_rows(content, self._config.columns, self._config.timestamp_unit, self._config.item_features)

    def _check(self, decoded: Decoded, latest_ms: int | None) -> tuple[pa.Table, Faults]:
        verdict = _Verdict(np.ones(len(decoded.positions), np.bool_))
        for name, limit, too_long in (
            (columns.USER_ID, MAX_ID_BYTES, Reason.ID_TOO_LONG),
            (columns.ITEM_ID, MAX_ID_BYTES, Reason.ID_TOO_LONG),
            (columns.EVENT_ID, MAX_ID_BYTES, Reason.ID_TOO_LONG),
            (columns.ATTRIBUTION_TOKEN, MAX_TOKEN_BYTES, Reason.TOKEN_TOO_LONG),
        ):
            self._check_text(verdict, decoded.texts[name], name, limit, too_long)
        self._check_time(verdict, decoded, latest_ms)
        weights = self._check_weight(verdict, decoded.weights)
        labels = self._check_type(verdict, decoded.texts[columns.EVENT_TYPE])
        for fault in faults_of(decoded.features):
            verdict.refuse(*fault)
        kept = np.flatnonzero(verdict.passed)
        texts = {name: decoded.texts[name].take(pa.array(kept)) for name in decoded.texts}
        table = pa.Table.from_pydict(
            {
                columns.USER_ID: texts[columns.USER_ID],
                columns.ITEM_ID: texts[columns.ITEM_ID],
                columns.TIMESTAMP: decoded.millis[0][kept],
                columns.EVENT_ID: texts[columns.EVENT_ID],
                columns.LABEL: labels[kept],
                columns.WEIGHT: weights[kept],
                columns.ATTRIBUTION_TOKEN: texts[columns.ATTRIBUTION_TOKEN],
                columns.POSITION: decoded.positions[kept],
            },
            schema=INTERACTION_SCHEMA,
        )
        features = {name: values.take(pa.array(kept)) for name, values in decoded.features.items()}
        table = with_features(table, features, self._config.item_features)
        told = [(int(decoded.positions[row]), fault, decoded.raw(row)) for row, fault in verdict.faults.items()]
        return table, decoded.refused + told

    def _check_text(self, verdict: _Verdict, texts: pa.Array, name: str, limit: int, too_long: Reason) -> None:
        spelling = self._names[name]
        if name in (columns.USER_ID, columns.ITEM_ID):
            nulls = texts.is_null().to_numpy(zero_copy_only=False)
            verdict.refuse(nulls, Reason.MISSING_FIELD, lambda _: f"{spelling} is missing or null")
        sizes = pc.fill_null(pc.binary_length(texts), 1).to_numpy(zero_copy_only=False)
        if name != columns.ATTRIBUTION_TOKEN:
            hint = "; leave it out if there is none" if name == columns.EVENT_ID else ""
            verdict.refuse(sizes == 0, Reason.EMPTY_ID, lambda _: f"{spelling} is empty{hint}")
        detail = lambda row: f"{spelling} has {sizes[row]} bytes, at most {limit} are allowed"  # noqa: E731
        verdict.refuse(sizes > limit, too_long, detail)
        verdict.refuse(not_utf8(texts), Reason.NOT_UTF8, lambda _: f"{spelling} is not UTF-8")

    def _check_time(self, verdict: _Verdict, decoded: Decoded, latest_ms: int | None) -> None:
        name, unit = self._names[columns.TIMESTAMP], self._config.timestamp_unit
        millis, readable = decoded.millis
        allowed = {
            "auto": "a number or an RFC 3339 string with its zone",
            "rfc3339": "an RFC 3339 string with its zone",
        }
        expected = allowed.get(unit, f"a number ({unit})")
        verdict.refuse(decoded.timeless, Reason.MISSING_FIELD, lambda _: f"{name} is null")
        verdict.refuse(
            ~readable, Reason.UNPARSABLE_TIMESTAMP, lambda _: f"{name} cannot be read; allowed is {expected}"
        )
        bounds = f"{_date(self._min_ms)} to {_date(self._max_ms)}"
        verdict.refuse(
            (millis < self._min_ms) | (millis > self._max_ms),
            Reason.TIMESTAMP_OUT_OF_RANGE,
            lambda row: f"{name} is {millis[row]} ms since 1970; allowed are {bounds}",
        )
        if latest_ms is not None:
            limit = f"the arrival of its file and pipeline.clock_tolerance_minutes allow {_date(latest_ms)}"
            verdict.refuse(
                millis > latest_ms, Reason.AHEAD_OF_ARRIVAL, lambda row: f"{name} is {_date(millis[row])}; {limit}"
            )

    def _check_weight(self, verdict: _Verdict, values: pa.Array) -> npt.NDArray[np.float32]:
        name = self._names[columns.WEIGHT]
        given = pc.fill_null(values, 1.0).to_numpy(zero_copy_only=False).astype(np.float64)
        with np.errstate(over="ignore"):
            weights: npt.NDArray[np.float32] = given.astype(np.float32)
        detail = lambda row: f"{name} is {given[row]}; allowed are finite numbers from 0 (32 bits)"  # noqa: E731
        verdict.refuse(~np.isfinite(weights), Reason.NON_FINITE_WEIGHT, detail)
        verdict.refuse(weights < 0, Reason.NEGATIVE_WEIGHT, detail)
        limit = self._config.max_weight
        verdict.refuse(
            given > limit,
            Reason.WEIGHT_TOO_LARGE,
            lambda row: f"{name} is {given[row]}; pipeline.max_weight allows {limit:g}",
        )
        return weights

    def _check_type(self, verdict: _Verdict, types: pa.Array) -> npt.NDArray[np.int8]:
        if not self._labels:
            return np.full(len(types), Label.POSITIVE, np.int8)
        name = self._names[columns.EVENT_TYPE]
        verdict.refuse(not_utf8(types), Reason.NOT_UTF8, lambda _: f"{name} is not UTF-8")
        encoded = types.dictionary_encode(null_encoding="encode")
        policy = self._config.unknown_event_type
        unknown = _REFUSED if policy == "dead_letter" else Label[policy.upper()]
        raw = encoded.dictionary.cast(pa.binary()).to_pylist()
        spelled: list[Any] = [None if kind is None else kind.decode(errors="backslashreplace") for kind in raw]
        meaning = np.array([self._labels.get(kind, unknown) for kind in spelled], np.int8)
        labels: npt.NDArray[np.int8] = meaning[encoded.indices.to_numpy(zero_copy_only=False)]
        known = ", ".join(sorted(self._labels))
        verdict.refuse(
            labels == _REFUSED,
            Reason.UNKNOWN_EVENT_TYPE,
            lambda row: f"{name} is {spelled[encoded.indices[row].as_py()]!r:.200}; event_types names {known}",
        )
        return labels


def _halves(content: Lines | Rows) -> list[Lines | Rows]:
    """Return the second half and the first, in the order in which a stack takes them."""
    middle, positions = len(content.positions) // 2, content.positions
    if isinstance(content, Lines):
        return [Lines(content.lines[middle:], positions[middle:]), Lines(content.lines[:middle], positions[:middle])]
    return [Rows(content.table[middle:], positions[middle:]), Rows(content.table[:middle], positions[:middle])]


def _unreadable(content: Lines | Rows, error: Exception) -> tuple[int, Fault, bytes]:
    first, last = int(content.positions[0]), int(content.positions[-1])
    detail = f"{type(error).__name__}: {error} ({len(content.positions)} rows refused, positions {first} to {last})"
    return first, Fault(Reason.UNREADABLE_BLOCK, detail), content.lines[0] if isinstance(content, Lines) else b""


def _date(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class Validate(beam.DoFn):
    """`Block` to `Batch`; the `Letters` of every block leave by the tag `DEAD`."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def setup(self) -> None:
        """Build the decoder, which does not travel."""
        self._validator = Validator(self._config)

    def process(self, element: Block) -> Iterator[Any]:
        """Validate one block."""
        batch, letters = self._validator.validate(element)
        yield beam.pvalue.TaggedOutput(DEAD, letters)
        yield batch
