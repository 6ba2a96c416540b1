//! Protobuf as the server reads and writes it: the part of `weir.retrieval.v1` that the prototype answers.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use std::time::Duration;

/// `RetrieveRequest`; fields that are not named here are skipped, as protobuf does with unknown ones.
#[derive(Clone, PartialEq, Message)]
pub struct RetrieveRequest {
    #[prost(message, repeated, tag = "1")]
    pub queries: Vec<Query>,
}

/// `Query` with a history as its source.
#[derive(Clone, PartialEq, Message)]
pub struct Query {
    #[prost(message, optional, tag = "2")]
    pub history: Option<History>,
    #[prost(uint32, optional, tag = "5")]
    pub k: Option<u32>,
}

/// `History`: ids as bytes of the message itself, which are checked for UTF-8 where they are hashed.
#[derive(Clone, PartialEq, Message)]
pub struct History {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub item_ids: Vec<Bytes>,
}

/// The id strings of all items: bytes of row r are `text[ends[r - 1]..ends[r]]`.
pub struct Ids {
    pub text: Vec<u8>,
    pub ends: Vec<u64>,
}

impl Ids {
    fn of(&self, row: i64) -> &[u8] {
        let row = row as usize;
        let start = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.text[start..self.ends[row] as usize]
    }
}

/// What was found for one query: `rows` (k) with -1 where there is no more, their `scores`, and ids that are unknown.
pub struct Found<'a> {
    pub rows: &'a [i64],
    pub scores: &'a [f32],
    pub missing: Vec<&'a Bytes>,
    pub complete: bool,
}

/// Seconds of each stage.
pub struct Timing {
    pub total: Duration,
    pub queue: Duration,
    pub tower: Duration,
    pub search: Duration,
}

/// Append the field `hits` of a `RetrieveResponse`.
pub fn put_hits(found: &Found<'_>, ids: &Ids, out: &mut BytesMut) {
    let hits = found.rows.iter().take_while(|row| **row >= 0).count();
    let (rows, scores) = (&found.rows[..hits], &found.scores[..hits]);
    let mut size = scores.len() * 4;
    size += key_len(2) + encoded_len_varint(size as u64);
    size += rows.iter().map(|row| text_len(ids.of(*row))).sum::<usize>();
    size += found.missing.iter().map(|id| text_len(id)).sum::<usize>();
    size += if found.complete { 2 } else { 0 };
    out.reserve(size + 8);
    encode_key(1, WireType::LengthDelimited, out);
    encode_varint(size as u64, out);
    rows.iter().for_each(|row| put_text(1, ids.of(*row), out));
    encode_key(2, WireType::LengthDelimited, out);
    encode_varint((scores.len() * 4) as u64, out);
    scores.iter().for_each(|score| out.put_f32_le(*score));
    found.missing.iter().for_each(|id| put_text(3, id, out));
    if found.complete {
        encode_key(6, WireType::Varint, out);
        encode_varint(1, out);
    }
}

/// Append the fields `bundle_version` and `timing` of a `RetrieveResponse`.
pub fn put_end(version: &str, timing: &Timing, out: &mut BytesMut) {
    put_text(2, version.as_bytes(), out);
    let mut stages = BytesMut::with_capacity(64);
    for (tag, spent) in [(1, timing.total), (2, timing.queue), (3, timing.tower), (4, timing.search)] {
        let mut duration = BytesMut::with_capacity(16);
        encode_key(1, WireType::Varint, &mut duration);
        encode_varint(spent.as_secs(), &mut duration);
        encode_key(2, WireType::Varint, &mut duration);
        encode_varint(u64::from(spent.subsec_nanos()), &mut duration);
        put_text(tag, &duration, &mut stages);
    }
    put_text(4, &stages, out);
}

fn text_len(text: &[u8]) -> usize {
    1 + encoded_len_varint(text.len() as u64) + text.len()
}

fn put_text(tag: u32, text: &[u8], out: &mut BytesMut) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(text.len() as u64, out);
    out.put_slice(text);
}
