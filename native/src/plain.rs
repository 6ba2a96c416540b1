//! Plain requests: those that are answered here. Whatever is not plain, valid or not, Python answers.

use crate::wire::{Query, RetrieveRequest};
use blake2::Blake2bMac;
use blake2::digest::consts::U8;
use blake2::digest::{FixedOutput, Update};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// What a plain request may ask for, and what it costs (`serving/cost.py`).
pub struct Rules {
    pub max_queries: usize,
    pub max_k: u32,
    pub max_history_item_ids: usize,
    pub max_item_ids: usize,
    pub max_id_bytes: usize,
    pub default_k: u32,
    /// Cost of a query besides its ids and its k.
    pub query_cost: f64,
    /// Requests that cost more are not plain.
    pub max_cost: f64,
    /// The key of the store's hashes; empty: they have none.
    pub secret: Vec<u8>,
}

/// One query: by the ids of a history, or, without ids, by the key of a user.
pub struct Wanted {
    pub ids: Vec<Bytes>,
    pub keys: Vec<i64>,
    pub is_user: bool,
    pub k: u32,
}

impl Rules {
    /// Return the queries of a plain request, and what it costs.
    pub fn plain(&self, request: RetrieveRequest) -> Option<(Vec<Wanted>, f64)> {
        let has_wishes = request.params.is_some() || request.filter.is_some() || request.diversity.is_some();
        let leaves_out = request.exclude_seen || !request.excluded_item_ids.is_empty();
        let queries = request.queries;
        let ids: usize = queries.iter().filter_map(|query| query.history.as_ref()).map(|all| all.item_ids.len()).sum();
        let fits = (1..=self.max_queries).contains(&queries.len()) && ids <= self.max_item_ids;
        if has_wishes || leaves_out || !request.bundle_version.is_empty() || !fits {
            return None;
        }
        let wanted: Vec<Wanted> = queries.into_iter().map(|query| self.wanted(query)).collect::<Option<_>>()?;
        let each = wanted.iter().map(|query| self.query_cost + query.ids.len() as f64 + f64::from(query.k));
        let cost: f64 = each.sum();
        (cost <= self.max_cost).then_some((wanted, cost))
    }

    fn wanted(&self, query: Query) -> Option<Wanted> {
        let k = query.k.unwrap_or(self.default_k);
        if k < 1 || k > self.max_k || query.embedding.is_some() || query.item_id.is_some() {
            return None;
        }
        match (query.user_id, query.history) {
            (Some(user), None) => Some(Wanted { ids: vec![], keys: vec![self.key(&user)?], is_user: true, k }),
            (None, Some(history)) if history.item_ids.len() <= self.max_history_item_ids => {
                let keys = history.item_ids.iter().map(|id| self.key(id)).collect::<Option<_>>()?;
                Some(Wanted { ids: history.item_ids, keys, is_user: false, k })
            }
            _ => None,
        }
    }

    /// The key of an id (`contracts/keys.py`); None: it is no id.
    fn key(&self, id: &Bytes) -> Option<i64> {
        if id.is_empty() || id.len() > self.max_id_bytes || std::str::from_utf8(id).is_err() {
            return None;
        }
        let key = if self.secret.is_empty() { xxh3_64(id) as i64 } else { self.keyed(id)? };
        Some(if key == 0 { 1 } else { key })
    }

    fn keyed(&self, id: &Bytes) -> Option<i64> {
        let mut hash = Blake2bMac::<U8>::new_with_salt_and_personal(&self.secret, &[], &[]).ok()?;
        Update::update(&mut hash, id);
        Some(i64::from_le_bytes(hash.finalize_fixed().into()))
    }
}
