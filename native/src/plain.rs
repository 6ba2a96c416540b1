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
    pub max_excluded_item_ids: usize,
    pub max_item_ids: usize,
    pub max_id_bytes: usize,
    pub default_k: u32,
    /// Cost of a query besides its ids and its k.
    pub query_cost: f64,
    /// Cost of leaving out what a user has seen.
    pub seen_cost: f64,
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

/// What a request does not want: what its users have seen, or the items of its histories, and items by key.
#[derive(Default)]
pub struct LeftOut {
    pub seen: bool,
    pub keys: Vec<i64>,
}

impl LeftOut {
    pub fn is_nothing(&self) -> bool {
        !self.seen && self.keys.is_empty()
    }
}

/// A plain request.
pub struct Plain {
    pub queries: Vec<Wanted>,
    pub left_out: LeftOut,
    pub probe: bool,
    pub cost: f64,
}

impl Rules {
    /// Return what a plain request asks for; None: it is not plain.
    pub fn plain(&self, request: RetrieveRequest) -> Option<Plain> {
        let has_wishes = request.params.is_some() || request.filter.is_some() || request.diversity.is_some();
        let (queries, excluded) = (request.queries, request.excluded_item_ids);
        let histories = queries.iter().filter_map(|query| query.history.as_ref());
        let ids: usize = histories.map(|history| history.item_ids.len()).sum();
        let fits = (1..=self.max_queries).contains(&queries.len())
            && excluded.len() <= self.max_excluded_item_ids
            && ids + excluded.len() <= self.max_item_ids;
        if has_wishes || !request.bundle_version.is_empty() || !fits {
            return None;
        }
        let queries: Vec<Wanted> = queries.into_iter().map(|query| self.wanted(query)).collect::<Option<_>>()?;
        let keys = excluded.iter().map(|id| self.key(id)).collect::<Option<_>>()?;
        let left_out = LeftOut { seen: request.exclude_seen, keys };
        let cost: f64 = queries.iter().map(|query| self.cost(query, &left_out)).sum();
        (cost <= self.max_cost).then_some(Plain { queries, left_out, probe: request.probe, cost })
    }

    fn cost(&self, query: &Wanted, left_out: &LeftOut) -> f64 {
        let seen = if left_out.seen && query.is_user { self.seen_cost } else { 0.0 };
        self.query_cost + (query.ids.len() + left_out.keys.len()) as f64 + f64::from(query.k) + seen
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
