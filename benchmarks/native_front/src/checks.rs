//! The rules of a request, and the keys of its ids: what `serving/requests.py` does.

use crate::wire::RetrieveRequest;
use bytes::Bytes;
use tonic::Status;
use xxhash_rust::xxh3::xxh3_64;

/// What a request may ask for; the names are those of `serving.limits`.
pub struct Limits {
    pub max_queries: usize,
    pub max_k: u32,
    pub max_history_item_ids: usize,
    pub max_id_bytes: usize,
}

const DEFAULT_K: u32 = 10;

/// One query: ids of its history, their keys, and how many items are wanted.
pub struct Wanted {
    pub ids: Vec<Bytes>,
    pub keys: Vec<i64>,
    pub k: u32,
}

/// Check a request and hash its ids; the first problem is refused with its path.
pub fn checked(request: RetrieveRequest, limits: &Limits) -> Result<Vec<Wanted>, Status> {
    let queries = request.queries.len();
    if queries < 1 || queries > limits.max_queries {
        let most = limits.max_queries;
        return Err(refused("queries", format!("holds {queries}, must hold from 1 to {most}")));
    }
    let numbered = request.queries.into_iter().enumerate();
    numbered
        .map(|(number, query)| {
            let path = || format!("queries[{number}]");
            let k = query.k.unwrap_or(DEFAULT_K);
            if k < 1 || k > limits.max_k {
                return Err(refused(&(path() + ".k"), format!("is {k}, must be from 1 to {}", limits.max_k)));
            }
            let Some(history) = query.history else {
                return Err(refused(&path(), "has no history: the prototype takes no other source".into()));
            };
            let (ids, most) = (history.item_ids, limits.max_history_item_ids);
            if ids.len() > most {
                let problem = format!("holds {} ids, at most {most} are allowed", ids.len());
                return Err(refused(&(path() + ".history.item_ids"), problem));
            }
            let keys = ids.iter().enumerate().map(|(place, id)| {
                key(id, limits.max_id_bytes)
                    .map_err(|problem| refused(&format!("{}.history.item_ids[{place}]", path()), problem))
            });
            let keys = keys.collect::<Result<Vec<i64>, Status>>()?;
            Ok(Wanted { ids, keys, k })
        })
        .collect()
}

/// The key of an id in a store without a secret (`contracts/keys.py`).
fn key(id: &Bytes, most: usize) -> Result<i64, String> {
    if id.is_empty() {
        return Err("is empty".into());
    }
    if id.len() > most {
        return Err(format!("has {} bytes, at most {most} are allowed", id.len()));
    }
    if std::str::from_utf8(id).is_err() {
        return Err("is not UTF-8".into());
    }
    let signed = xxh3_64(id) as i64;
    Ok(if signed == 0 { 1 } else { signed })
}

fn refused(path: &str, problem: String) -> Status {
    Status::invalid_argument(format!("{path}: {problem}"))
}
