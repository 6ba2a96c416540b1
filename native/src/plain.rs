//! Plain requests, which are answered here. Python answers all others, valid or not.

use crate::wire::{Embedding, History, Query, RetrieveRequest};
use blake2::Blake2bMac;
use blake2::digest::consts::U8;
use blake2::digest::{FixedOutput, Update};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// Largest length of an embedding in a plain request, for any metric (`serving/rpc/requests.py` allows somewhat more).
const LONGEST: f64 = 1e17;

/// Limits and cost parameters of plain requests (`serving/search/cost.py`).
pub struct Rules {
    pub max_queries: usize,
    pub max_k: u32,
    pub max_history_item_ids: usize,
    pub max_excluded_item_ids: usize,
    pub max_item_ids: usize,
    pub max_id_bytes: usize,
    pub default_k: u32,
    /// Number of values of an embedding.
    pub dimension: usize,
    /// Cost of a query besides its ids and its k.
    pub query_cost: f64,
    /// Cost of excluding a user's seen items.
    pub seen_cost: f64,
    /// Largest cost of a plain request.
    pub max_cost: f64,
    /// Secret of the store's key hashes; empty: none.
    pub secret: Vec<u8>,
}

/// Kind of a query's source, numbered as in `serving/native/columns.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    User = 0,
    History = 1,
    Embedding = 2,
    Item = 3,
}

/// One query: the key of a user, the items of a history, the values of an embedding, or an item.
pub struct Wanted {
    pub kind: Kind,
    /// Ids of the items, to be returned as missing if the bundle lacks them.
    pub ids: Vec<Bytes>,
    /// Keys of the user or of the items.
    pub keys: Vec<i64>,
    pub values: Vec<f32>,
    pub k: u32,
}

/// Exclusions of a request: the items that its users have seen, or those of its histories, and items by key.
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
    /// Parse and check a request; None if it is not plain.
    pub fn plain(&self, request: RetrieveRequest) -> Option<Plain> {
        // Clients send empty parameters and an empty filter, which have no effect; an empty diversity is an error.
        let says = |message: &Option<Bytes>| message.as_ref().is_some_and(|bytes| !bytes.is_empty());
        let has_wishes = says(&request.params) || says(&request.filter) || request.diversity.is_some();
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
        let seen = if left_out.seen && query.kind == Kind::User { self.seen_cost } else { 0.0 };
        self.query_cost + (query.ids.len() + left_out.keys.len()) as f64 + f64::from(query.k) + seen
    }

    fn wanted(&self, query: Query) -> Option<Wanted> {
        let k = query.k.unwrap_or(self.default_k);
        if k < 1 || k > self.max_k || !query.features.is_empty() {
            return None;
        }
        let of = |kind, ids, keys, values| Some(Wanted { kind, ids, keys, values, k });
        match (query.user_id, query.history, query.embedding, query.item_id) {
            (Some(user), None, None, None) => of(Kind::User, vec![], vec![self.key(&user)?], vec![]),
            (None, Some(History { item_ids: ids }), None, None) if ids.len() <= self.max_history_item_ids => {
                let keys = ids.iter().map(|id| self.key(id)).collect::<Option<_>>()?;
                of(Kind::History, ids, keys, vec![])
            }
            (None, None, Some(Embedding { values }), None) => {
                self.is_direction(&values).then(|| of(Kind::Embedding, vec![], vec![], values))?
            }
            (None, None, None, Some(item)) => {
                let keys = vec![self.key(&item)?];
                of(Kind::Item, vec![item], keys, vec![])
            }
            _ => None,
        }
    }

    /// Return whether an embedding has the bundle's dimension and a length whose scores do not overflow.
    fn is_direction(&self, values: &[f32]) -> bool {
        let square: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        values.len() == self.dimension && square > 0.0 && square <= LONGEST * LONGEST
    }

    /// Return the key of an id (`weir/contracts/base/keys.py`); None if the id is invalid.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(secret: &[u8]) -> Rules {
        Rules {
            max_queries: 3,
            max_k: 50,
            max_history_item_ids: 4,
            max_excluded_item_ids: 2,
            max_item_ids: 6,
            max_id_bytes: 8,
            default_k: 10,
            dimension: 2,
            query_cost: 100.0,
            seen_cost: 200.0,
            max_cost: 1000.0,
            secret: secret.into(),
        }
    }

    fn user(id: &'static str) -> Query {
        Query { user_id: Some(Bytes::from_static(id.as_bytes())), ..Default::default() }
    }

    fn history(ids: &[&'static str]) -> Query {
        let item_ids = ids.iter().map(|id| Bytes::from_static(id.as_bytes())).collect();
        Query { history: Some(History { item_ids }), ..Default::default() }
    }

    fn embedding(values: &[f32]) -> Query {
        Query { embedding: Some(Embedding { values: values.into() }), ..Default::default() }
    }

    fn item(id: &'static str) -> Query {
        Query { item_id: Some(Bytes::from_static(id.as_bytes())), ..Default::default() }
    }

    fn request(queries: Vec<Query>) -> RetrieveRequest {
        RetrieveRequest { queries, ..Default::default() }
    }

    #[test]
    fn keys_are_those_of_the_store() {
        // contracts.hash_id("item-1"), without a secret and with "00ff".
        assert_eq!(rules(&[]).key(&Bytes::from_static(b"item-1")), Some(-6274262587704068686));
        assert_eq!(rules(&[0, 255]).key(&Bytes::from_static(b"item-1")), Some(8364750990660965143));
        for wrong in [&b""[..], b"123456789", b"\xff"] {
            assert_eq!(rules(&[]).key(&Bytes::copy_from_slice(wrong)), None);
        }
    }

    #[test]
    fn a_plain_request_is_read_with_its_cost() {
        let mut asked = request(vec![user("ann"), history(&["a", "b"]), embedding(&[0.0, -2.0])]);
        asked.queries[1].k = Some(20);
        asked.exclude_seen = true;
        asked.excluded_item_ids = vec![Bytes::from_static(b"c")];
        let plain = rules(&[]).plain(asked).expect("plain");
        assert_eq!(
            plain.queries.iter().map(|query| (query.kind, query.k)).collect::<Vec<_>>(),
            [(Kind::User, 10), (Kind::History, 20), (Kind::Embedding, 10)]
        );
        assert_eq!(plain.queries[1].ids, ["a", "b"]);
        assert_eq!(plain.queries[2].values, [0.0, -2.0]);
        assert!(plain.left_out.seen && plain.left_out.keys.len() == 1);
        assert_eq!(plain.cost, (100.0 + 1.0 + 10.0 + 200.0) + (100.0 + 2.0 + 1.0 + 20.0) + (100.0 + 1.0 + 10.0));
        let similar = rules(&[]).plain(request(vec![item("item-1")])).expect("plain");
        let Wanted { kind, ids, keys, .. } = &similar.queries[0];
        assert_eq!((*kind, ids.len(), keys.as_slice()), (Kind::Item, 1, &[-6274262587704068686][..]));
    }

    #[test]
    fn what_is_not_plain_is_left_to_python() {
        let plain = |request: RetrieveRequest| rules(&[]).plain(request).is_some();
        assert!(plain(request(vec![history(&[])])));
        let empty = Some(Bytes::new());
        assert!(plain(RetrieveRequest { params: empty.clone(), filter: empty, ..request(vec![user("ann")]) }));
        let mut wishes: Vec<RetrieveRequest> = vec![
            request(vec![]),
            request(vec![user("ann"), user("ann"), user("ann"), user("ann")]),
            request(vec![Query::default()]),
            request(vec![user("")]),
            request(vec![history(&["a", "b", "c", "d", "e"])]),
            request(vec![history(&["a", "b", "c", "d"]), history(&["a", "b", "c"])]),
            request(vec![Query { history: Some(History::default()), ..user("ann") }]),
            request(vec![item("")]),
            request(vec![Query { item_id: Some(Bytes::from_static(b"a")), ..user("ann") }]),
            request(vec![embedding(&[])]),
            request(vec![embedding(&[1.0])]),
            request(vec![embedding(&[0.0, 0.0])]),
            request(vec![embedding(&[1.0, f32::NAN])]),
            request(vec![embedding(&[f32::INFINITY, 1.0])]),
            request(vec![embedding(&[1e18, 1.0])]),
            request(vec![Query { history: Some(History::default()), ..embedding(&[1.0, 1.0]) }]),
            request(vec![Query { k: Some(0), ..user("ann") }]),
            request(vec![user("ann"), Query { features: vec![Bytes::new()], ..user("ann") }]),
            request(vec![Query { k: Some(51), ..user("ann") }]),
            RetrieveRequest { params: Some(Bytes::from_static(b"\x08\x01")), ..request(vec![user("ann")]) },
            RetrieveRequest { filter: Some(Bytes::from_static(b"\x0a\x01a")), ..request(vec![user("ann")]) },
            RetrieveRequest { diversity: Some(Bytes::new()), ..request(vec![user("ann")]) },
            RetrieveRequest { bundle_version: Bytes::from_static(b"v1"), ..request(vec![user("ann")]) },
            RetrieveRequest { excluded_item_ids: vec![Bytes::new()], ..request(vec![user("ann")]) },
            RetrieveRequest { excluded_item_ids: vec![Bytes::from_static(b"a"); 3], ..request(vec![user("ann")]) },
        ];
        // Three users with excluded seen items cost 930: within the limit until k grows.
        let mut dear = RetrieveRequest { exclude_seen: true, ..request(vec![user("a"), user("b"), user("c")]) };
        assert!(plain(dear.clone()));
        dear.queries.iter_mut().for_each(|query| query.k = Some(40));
        wishes.push(dear);
        for (number, wish) in wishes.into_iter().enumerate() {
            assert!(!plain(wish), "{number}");
        }
    }
}
