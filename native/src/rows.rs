//! Look up rows by item keys, and build the tower's inputs, as `weir/contracts/bundles/rows.py` does.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

type Ints<'py> = PyReadonlyArray1<'py, i64>;
type Read<'py> = (Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<bool>>);

/// The tower's input row for padding.
const PADDING: i64 = 0;

/// Return the row of each key (n,), -1 for unknown ones. `rows` (m,) belong to ascending `keys` (m,); the rows of
/// ascending `later_keys` override them.
#[pyfunction]
pub fn look_up<'py>(
    py: Python<'py>,
    wanted: Ints<'py>,
    keys: Ints<'py>,
    rows: Ints<'py>,
    later_keys: Ints<'py>,
    later_rows: Ints<'py>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let wanted = wanted.as_slice()?;
    let mut found = vec![-1; wanted.len()];
    for (keys, rows) in [(&keys, &rows), (&later_keys, &later_rows)] {
        let (keys, rows) = (keys.as_slice()?, rows.as_slice()?);
        if keys.len() != rows.len() {
            return Err(PyValueError::new_err(format!("{} keys have {} rows", keys.len(), rows.len())));
        }
        replace(wanted, keys, rows, &mut found);
    }
    Ok(found.into_pyarray(py))
}

/// Write the rows of the known keys into `found`.
///
/// All binary searches advance level by level, so that their memory accesses are independent and overlap.
fn replace(wanted: &[i64], keys: &[i64], rows: &[i64], found: &mut [i64]) {
    if keys.is_empty() {
        return;
    }
    let (mut places, mut size) = (vec![0; wanted.len()], keys.len());
    while size > 1 {
        let half = size / 2;
        for (place, key) in places.iter_mut().zip(wanted) {
            *place += if keys[*place + half] <= *key { half } else { 0 };
        }
        size -= half;
    }
    for ((place, key), row) in places.into_iter().zip(wanted).zip(found) {
        if keys[place] == *key {
            *row = rows[place];
        }
    }
}

/// Return the tower's input rows and their mask for n concatenated histories of `lengths` (n,) items each: the newest
/// `length` known `rows` (-1: unknown), left-padded, with `first` added.
#[pyfunction]
pub fn tower_inputs<'py>(
    py: Python<'py>,
    rows: Ints<'py>,
    lengths: Ints<'py>,
    length: usize,
    first: i64,
) -> PyResult<Read<'py>> {
    let (rows, lengths) = (rows.as_slice()?, lengths.as_slice()?);
    let total: i64 = lengths.iter().sum();
    if lengths.iter().any(|own| *own < 0) || total != rows.len() as i64 {
        return Err(PyValueError::new_err(format!("histories of {total} items have {} rows", rows.len())));
    }
    let inputs = laid_out(rows, lengths, length, first);
    let mask: Vec<bool> = inputs.iter().map(|input| *input != PADDING).collect();
    let shape = [lengths.len(), length];
    Ok((inputs.into_pyarray(py).reshape(shape)?, mask.into_pyarray(py).reshape(shape)?))
}

fn laid_out(rows: &[i64], lengths: &[i64], length: usize, first: i64) -> Vec<i64> {
    let (mut inputs, mut rest) = (vec![PADDING; lengths.len() * length], rows);
    for (own, count) in inputs.chunks_exact_mut(length.max(1)).zip(lengths) {
        let (history, others) = rest.split_at(*count as usize);
        let known = history.iter().rev().filter(|row| **row >= 0);
        own.iter_mut().rev().zip(known).for_each(|(input, row)| *input = row + first);
        rest = others;
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_and_later_ones_take_their_place() {
        for count in [0, 1, 2, 3, 7, 8, 100] {
            let keys: Vec<i64> = (0..count).map(|number| 3 * number - 50).collect();
            let rows: Vec<i64> = (0..count).map(|number| 1000 - number).collect();
            let wanted: Vec<i64> = (-60..300).chain([i64::MIN, i64::MAX]).collect();
            let mut found = vec![-1; wanted.len()];
            replace(&wanted, &keys, &rows, &mut found);
            for (key, row) in wanted.iter().zip(&found) {
                let place = keys.iter().position(|other| other == key);
                assert_eq!(*row, place.map_or(-1, |place| rows[place]), "{key} among {count}");
            }
            replace(&wanted, &[-50, 7], &[-1, 5], &mut found);
            assert_eq!((found[10], found[67]), (-1, 5));
        }
    }

    #[test]
    fn the_newest_known_items_are_read_left_padded() {
        let rows = [4, -1, 5, -1, 6, 7, 8];
        assert_eq!(laid_out(&rows, &[3, 1, 0, 3], 2, 2), [6, 7, 0, 0, 0, 0, 9, 10]);
        assert_eq!(laid_out(&rows, &[3, 1, 0, 3], 4, 2), [0, 0, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 9, 10]);
    }
}
