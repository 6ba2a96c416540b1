"""Feature columns of items and users, decoded from a log and validated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import MAX_ID_BYTES, FeatureNames
from weir.contracts.base import columns
from weir.contracts.interactions import arrow_columns
from weir.contracts.interactions.features import CATEGORICAL_TYPE, DENSE_TYPE, MAX_VALUES, values_of
from weir.readers.blocks import Bool, Reason

__all__ = ["Features", "faults_of", "features_of_lines", "features_of_table", "with_features"]


Features = dict[str, pa.Array]
"""Name -> values of n rows: lists of strings if categorical, doubles if dense; null if unknown."""


def features_of_lines(found: Mapping[str, Sequence[Any]], names: FeatureNames) -> Features:
    """Return decoded JSON values (a string, a list of strings, a number or None) as features."""
    lists = {
        name: pa.array([[value] if isinstance(value, str) else value for value in found[name]], CATEGORICAL_TYPE)
        for name in names.categorical
    }
    return lists | {name: pa.array(found[name], DENSE_TYPE) for name in names.dense}


def features_of_table(table: pa.Table, names: FeatureNames) -> Features:
    """Return the columns of a table as features; raises `TypeError` for a type that does not fit."""
    lists = {name: arrow_columns.text_lists(arrow_columns.column(table, name), name) for name in names.categorical}
    return lists | {name: arrow_columns.numbers(arrow_columns.column(table, name), name) for name in names.dense}


def faults_of(features: Features) -> Iterator[tuple[Bool, Reason, Callable[[int], str]]]:
    """Yield possible faults of features: a mask of the bad rows (n,), the reason, and a function to describe a row."""
    for name, values in features.items():
        yield from _faults_of_numbers(values, name) if values.type == DENSE_TYPE else _faults_of_texts(values, name)


def _faults_of_numbers(values: pa.Array, name: str) -> Iterator[tuple[Bool, Reason, Callable[[int], str]]]:
    given = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(given.astype(np.float32))
    yield wrong, Reason.NON_FINITE_FEATURE, lambda row: f"{name} is {given[row]}; allowed are finite numbers (32 bits)"


def _faults_of_texts(values: pa.Array, name: str) -> Iterator[tuple[Bool, Reason, Callable[[int], str]]]:
    rows, found = values_of(values)
    counts = np.bincount(rows, minlength=len(values))

    def rows_with(wrong: Bool) -> Bool:
        return np.bincount(rows[wrong], minlength=len(values)) > 0

    yield (
        counts > MAX_VALUES,
        Reason.FEATURE_TOO_LONG,
        lambda row: f"{name} has {counts[row]} values, at most {MAX_VALUES} are allowed",
    )
    nulls = found.is_null().to_numpy(zero_copy_only=False)
    yield rows_with(nulls), Reason.WRONG_TYPE, lambda _: f"{name} has a null among its values; allowed are strings"
    sizes = pc.fill_null(pc.binary_length(found), 0).to_numpy(zero_copy_only=False)
    yield (
        rows_with(sizes > MAX_ID_BYTES),
        Reason.FEATURE_TOO_LONG,
        lambda row: f"{name} has a value of {sizes[rows == row].max()} bytes, at most {MAX_ID_BYTES} are allowed",
    )
    yield rows_with(arrow_columns.not_utf8(found)), Reason.NOT_UTF8, lambda _: f"{name} is not UTF-8"


def with_features(rows: pa.Table, features: Features, names: FeatureNames, column: str = columns.FEATURES) -> pa.Table:
    """Append the features as one struct, so that no name clashes with a column of the interaction."""
    if not names.all:
        return rows
    values = pa.StructArray.from_arrays([features[name] for name in names.all], fields=names.fields)
    return rows.append_column(pa.field(column, values.type, nullable=False), values)
