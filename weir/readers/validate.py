"""Validate blocks of raw rows: valid rows become interactions, the others dead letters."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import INTERACTION_SCHEMA, MAX_ID_BYTES, Label, interaction_schema
from weir.contracts.base import columns
from weir.contracts.interactions.arrow_columns import not_utf8
from weir.contracts.interactions.interaction import MissingIds
from weir.readers.blocks import Block, Bool, DeadLetter, Fault, Int64, Letters, Lines, Reason, TableRows, ValidatedBlock
from weir.readers.config import LogConfig
from weir.readers.decode import Decoded, Decoder, Faults
from weir.readers.features import faults_of, with_features
from weir.readers.sources import printable
from weir.readers.timestamps import Millis

__all__ = ["MAX_TOKEN_BYTES", "Validator"]

logger = logging.getLogger(__name__)

MAX_TOKEN_BYTES: Final = 4096
_END_OF_DATES: Final = datetime(9999, 12, 31, tzinfo=UTC)
_TRIES: Final = 64
"""How often a block that raises is halved: enough to isolate a few rows among 65,536."""
_PIECE: Final = 1 << 16
"""Rows whose times are read at once, to bound memory."""
_SHOWN: Final = 100
"""Characters of a value that a letter quotes."""
_REFUSED: Final = 2
"""Marks refused types among the labels; no `Label` has this value."""


@dataclass
class _Verdict:
    """The result of the checks so far: a mask (n,) of the rows that `passed`, and the first fault of each other row."""

    passed: Bool
    faults: dict[int, Fault] = field(default_factory=dict)

    def refuse(self, wrong: Bool, reason: Reason, detail: Callable[[int], str]) -> None:
        """Refuse the rows marked in `wrong`; `detail` describes a row."""
        for row in np.flatnonzero(wrong & self.passed).tolist():
            self.faults[row] = Fault(reason, detail(row))
        self.passed &= ~wrong


class Validator:
    """Checks rows against the contract and the settings; with `needs_time=False` rows may have a null time."""

    def __init__(self, config: LogConfig, *, needs_time: bool = True) -> None:
        self._config = config
        self._needs_time = needs_time
        self._names = config.columns.model_dump()
        self._decoder = Decoder(config, needs_time=needs_time)
        self._labels = config.labels()
        self._missing = MissingIds(config.missing_ids)
        self._min_ms = round(config.min_time.timestamp() * 1000)
        self._max_ms = round((config.max_time or _END_OF_DATES).timestamp() * 1000)
        self._schema = interaction_schema(config.item_features, config.user_features)
        if not needs_time:
            place = self._schema.get_field_index(columns.TIMESTAMP)
            self._schema = self._schema.set(place, self._schema.field(place).with_nullable(nullable=True))

    def event_times(self, content: Lines | TableRows) -> Millis:
        """Return the event time of each row, and a mask of valid times, regardless of other faults of the rows."""
        pieces = [content.piece(start, start + _PIECE) for start in range(0, len(content.positions) or 1, _PIECE)]
        millis, valid = zip(*map(self._times, pieces), strict=True)
        return np.concatenate(millis), np.concatenate(valid)

    def _times(self, content: Lines | TableRows) -> Millis:
        millis, valid = np.zeros(len(content.positions), np.int64), np.zeros(len(content.positions), np.bool_)
        decoded = self._decoder.decode(content)
        if not isinstance(decoded, Fault):
            place = np.searchsorted(content.positions, decoded.positions)
            millis[place], readable = decoded.millis
            valid[place] = readable & ~self._is_out_of_range(decoded.millis[0])
        return millis, valid

    def validate(self, block: Block) -> tuple[ValidatedBlock, Letters]:
        """Return a block's interactions and dead letters; never raises, whatever the block's content."""
        faults: Faults = [*block.faults]
        tables, pending, tries = [self._schema.empty_table()], [block.content], _TRIES
        while pending:
            content = pending.pop()
            if content is None or not len(content.positions):
                continue
            try:
                rows, refused = self._validate(content, block.latest_ms)
            except Exception as error:
                if tries and len(content.positions) > 1:
                    tries -= 1
                    middle = len(content.positions) // 2
                    pending += [content.piece(middle, len(content.positions)), content.piece(0, middle)]
                    continue
                logger.exception("%s: a block cannot be validated", printable(block.id.partition))
                rows, refused = tables[0], [_unreadable(content, error)]
            tables.append(rows)
            faults += refused
        letters = tuple(
            DeadLetter.of(block.id.partition, *fault) for fault in sorted(faults, key=lambda fault: fault[0])
        )
        batch = pa.concat_tables(tables).combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], self._schema)]
        return ValidatedBlock(block.id, batch[0], len(letters), block.stop), Letters(block.id, letters)

    def _validate(self, content: Lines | TableRows, latest_ms: int | None) -> tuple[pa.Table, Faults]:
        decoded = self._decoder.decode(content)
        if isinstance(decoded, Fault):
            return self._schema.empty_table(), [(int(content.positions[0]), decoded, b"")]
        if isinstance(content, Lines) and content.latest_ms is not None:
            return self._check(decoded, content.latest_ms[np.searchsorted(content.positions, decoded.positions)])
        return self._check(decoded, latest_ms)

    def _check(self, decoded: Decoded, latest_ms: int | Int64 | None) -> tuple[pa.Table, Faults]:
        verdict = _Verdict(np.ones(len(decoded.positions), np.bool_))
        for name, limit, too_long in (
            (columns.USER_ID, MAX_ID_BYTES, Reason.ID_TOO_LONG),
            (columns.ITEM_ID, MAX_ID_BYTES, Reason.ID_TOO_LONG),
            (columns.EVENT_ID, MAX_ID_BYTES, Reason.ID_TOO_LONG),
            (columns.ATTRIBUTION_TOKEN, MAX_TOKEN_BYTES, Reason.TOKEN_TOO_LONG),
        ):
            self._check_text(verdict, decoded.texts[name], name, limit, too_long)
        self._check_time(verdict, decoded, latest_ms)
        weights = self._check_weight(verdict, decoded)
        labels = self._check_type(verdict, decoded.texts[columns.EVENT_TYPE])
        for wrong in faults_of(decoded.features):
            verdict.refuse(*wrong)
        kept = np.flatnonzero(verdict.passed)
        is_whole = len(kept) == len(verdict.passed)
        texts = (
            decoded.texts if is_whole else {name: decoded.texts[name].take(pa.array(kept)) for name in decoded.texts}
        )
        table = pa.Table.from_pydict(
            {
                columns.USER_ID: texts[columns.USER_ID],
                columns.ITEM_ID: texts[columns.ITEM_ID],
                columns.TIMESTAMP: pa.array(decoded.millis[0][kept], mask=decoded.timeless[kept]),
                columns.EVENT_ID: texts[columns.EVENT_ID],
                columns.LABEL: labels[kept],
                columns.WEIGHT: weights[kept],
                columns.ATTRIBUTION_TOKEN: texts[columns.ATTRIBUTION_TOKEN],
                columns.POSITION: decoded.positions[kept],
            },
            schema=pa.schema(list(self._schema)[: len(INTERACTION_SCHEMA)]),
        )
        taken = {name: values if is_whole else values.take(pa.array(kept)) for name, values in decoded.features.items()}
        table = with_features(table, taken, self._config.item_features)
        table = with_features(table, taken, self._config.user_features, columns.USER_FEATURES)
        millis, readable = decoded.millis
        faults: Faults = [
            (int(decoded.positions[row]), fault, decoded.raw(row), int(millis[row]) if readable[row] else None)
            for row, fault in verdict.faults.items()
        ]
        return table, decoded.refused + faults

    def _check_text(self, verdict: _Verdict, texts: pa.Array, name: str, limit: int, too_long: Reason) -> None:
        spelling = self._names[name]
        if name in (columns.USER_ID, columns.ITEM_ID):
            nulls = texts.is_null().to_numpy(zero_copy_only=False)
            verdict.refuse(nulls, Reason.MISSING_FIELD, lambda _: f"{spelling} is missing or null")
        sizes = pc.fill_null(pc.binary_length(texts), 1).to_numpy(zero_copy_only=False)
        broken = not_utf8(texts)
        if name != columns.ATTRIBUTION_TOKEN:
            hint = "; leave it out if there is none" if name == columns.EVENT_ID else ""
            blank, missing = self._missing.marks(texts, broken)
            verdict.refuse(sizes == 0, Reason.EMPTY_ID, lambda _: f"{spelling} is empty{hint}")
            verdict.refuse(blank, Reason.EMPTY_ID, lambda row: f"{spelling} is {_shown(texts[row])}, blank{hint}")
            stands = "which stands for no id (pipeline.missing_ids)"
            verdict.refuse(
                missing, Reason.MISSING_ID, lambda row: f"{spelling} is {_shown(texts[row])}, {stands}{hint}"
            )
        detail = lambda row: f"{spelling} has {sizes[row]} bytes, at most {limit} are allowed"  # noqa: E731
        verdict.refuse(sizes > limit, too_long, detail)
        advice = "write it as text, or a UUID with the type UUID"
        verdict.refuse(broken, Reason.NOT_UTF8, lambda _: f"{spelling} is not UTF-8; {advice}")

    def _check_time(self, verdict: _Verdict, decoded: Decoded, latest_ms: int | Int64 | None) -> None:
        name, unit = self._names[columns.TIMESTAMP], self._config.timestamp_unit
        millis, readable = decoded.millis
        allowed = {
            "auto": "a number or an RFC 3339 string with its zone",
            "rfc3339": "an RFC 3339 string with its zone",
        }
        expected = f"allowed is {allowed.get(unit, f'a number ({unit})')}"
        if self._needs_time:
            verdict.refuse(decoded.timeless, Reason.MISSING_FIELD, lambda _: f"{name} is null")
        verdict.refuse(
            ~readable & ~decoded.timeless,
            Reason.UNPARSABLE_TIMESTAMP,
            lambda row: f"{name} is {_shown(decoded.value(columns.TIMESTAMP, row))}, which cannot be read; {expected}",
        )
        bounds = f"allowed are {_date(self._min_ms)} to {_date(self._max_ms)}"
        verdict.refuse(
            self._is_out_of_range(millis) & ~decoded.timeless,
            Reason.TIMESTAMP_OUT_OF_RANGE,
            lambda row: f"{name} is {_shown(decoded.value(columns.TIMESTAMP, row))}{_read_as(millis[row])}; {bounds}",
        )
        if latest_ms is not None:
            latest = np.broadcast_to(latest_ms, millis.shape)
            arrival = "its file" if isinstance(latest_ms, int) else "its message"
            limit = f"the arrival of {arrival} and pipeline.clock_tolerance_minutes allow"
            verdict.refuse(
                millis > latest,
                Reason.AHEAD_OF_ARRIVAL,
                lambda row: f"{name} is {_date(millis[row])}; {limit} {_date(latest[row])}",
            )

    def _is_out_of_range(self, millis: Int64) -> Bool:
        out: Bool = (millis < self._min_ms) | (millis > self._max_ms)
        return out

    def _check_weight(self, verdict: _Verdict, decoded: Decoded) -> npt.NDArray[np.float32]:
        name = self._names[columns.WEIGHT]
        values, unread = decoded.weights
        given = pc.fill_null(values, 1.0).to_numpy(zero_copy_only=False).astype(np.float64)

        def said(row: int) -> str:
            return f"{name} is {_shown(decoded.value(columns.WEIGHT, row))}"

        verdict.refuse(unread, Reason.WRONG_TYPE, lambda row: f"{said(row)}, which is no number")
        with np.errstate(over="ignore"):
            weights: npt.NDArray[np.float32] = given.astype(np.float32)
        detail = lambda row: f"{said(row)}; allowed are finite numbers from 0 (32 bits)"  # noqa: E731
        verdict.refuse(~np.isfinite(weights), Reason.NON_FINITE_WEIGHT, detail)
        verdict.refuse(weights < 0, Reason.NEGATIVE_WEIGHT, detail)
        limit = self._config.max_weight
        verdict.refuse(
            given > limit,
            Reason.WEIGHT_TOO_LARGE,
            lambda row: f"{said(row)}; pipeline.max_weight allows {limit:g}",
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


def _unreadable(content: Lines | TableRows, error: Exception) -> tuple[int, Fault, bytes]:
    first, last = int(content.positions[0]), int(content.positions[-1])
    detail = f"{type(error).__name__}: {error} ({len(content.positions)} rows refused, positions {first} to {last})"
    return first, Fault(Reason.UNREADABLE_BLOCK, detail), content.lines[0] if isinstance(content, Lines) else b""


def _shown(value: Any) -> str:
    """Return a value for a message, as the log spells it; texts are quoted, long values cut."""
    if isinstance(value, pa.Scalar):
        value = value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    said = repr(value) if isinstance(value, str) else str(value)
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def _read_as(millis: int) -> str:
    """Return the date that a number means, in parentheses, or "" outside the years of dates."""
    first, last = -62_135_596_800_000, _END_OF_DATES.timestamp() * 1000
    return f" ({_date(millis)})" if first <= millis <= last else ""


def _date(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
