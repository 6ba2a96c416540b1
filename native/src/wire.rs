//! Protobuf messages of plain requests, and encoding of their answers.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use std::time::Duration;

/// `weir.retrieval.v1.RetrieveRequest`. Fields of which only the presence matters are read as bytes.
#[derive(Clone, PartialEq, Message)]
pub struct RetrieveRequest {
    #[prost(message, repeated, tag = "1")]
    pub queries: Vec<Query>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub params: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub filter: Option<Bytes>,
    #[prost(bool, tag = "4")]
    pub exclude_seen: bool,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub excluded_item_ids: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "6")]
    pub bundle_version: Bytes,
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub diversity: Option<Bytes>,
    #[prost(bool, tag = "11")]
    pub probe: bool,
}

/// `Query`; plain requests have at most one source set.
#[derive(Clone, PartialEq, Message)]
pub struct Query {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub user_id: Option<Bytes>,
    #[prost(message, optional, tag = "2")]
    pub history: Option<History>,
    #[prost(message, optional, tag = "3")]
    pub embedding: Option<Embedding>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub item_id: Option<Bytes>,
    #[prost(uint32, optional, tag = "5")]
    pub k: Option<u32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub features: Vec<Bytes>,
}

/// `History`; the ids are checked to be UTF-8 when they are hashed.
#[derive(Clone, PartialEq, Message)]
pub struct History {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub item_ids: Vec<Bytes>,
}

/// `Embedding`.
#[derive(Clone, PartialEq, Message)]
pub struct Embedding {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

/// Hits of one query, best first; `cold` marks cold items, empty if none is.
pub struct Hits<'a> {
    pub ids: Vec<&'a str>,
    pub scores: &'a [f32],
    pub missing: Vec<&'a Bytes>,
    pub fallback: bool,
    pub seen_bounded: bool,
    pub complete: bool,
    pub cold: &'a [bool],
}

/// Durations of a request's stages.
#[derive(Clone, Copy)]
pub struct Stages {
    pub total: Duration,
    pub queue: Duration,
    pub tower: Duration,
    pub search: Duration,
}

impl Hits<'_> {
    /// Append these hits to a `RetrieveResponse`.
    pub fn put(&self, out: &mut BytesMut) {
        let texts = self.ids.iter().map(|id| id.len()).chain(self.missing.iter().map(|id| id.len()));
        let flags = [(4, self.fallback), (5, self.seen_bounded), (6, self.complete)];
        let mut size: usize = texts.map(delimited).sum();
        size += flags.iter().filter(|(_, is_set)| *is_set).count() * 2;
        size += if self.scores.is_empty() { 0 } else { delimited(self.scores.len() * 4) };
        size += if self.cold.is_empty() { 0 } else { delimited(self.cold.len()) };
        out.reserve(size + 8);
        encode_key(1, WireType::LengthDelimited, out);
        encode_varint(size as u64, out);
        self.ids.iter().for_each(|id| put_bytes(1, id.as_bytes(), out));
        if !self.scores.is_empty() {
            put_head(2, self.scores.len() * 4, out);
            self.scores.iter().for_each(|score| out.put_f32_le(*score));
        }
        self.missing.iter().for_each(|id| put_bytes(3, id, out));
        for (tag, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
            encode_key(tag, WireType::Varint, out);
            out.put_u8(1);
        }
        if !self.cold.is_empty() {
            put_head(7, self.cold.len(), out);
            self.cold.iter().for_each(|cold| out.put_u8(u8::from(*cold)));
        }
    }
}

/// Append everything but the hits to a `RetrieveResponse`.
pub fn put_end(version: &str, token: &str, stages: &Stages, out: &mut BytesMut) {
    put_bytes(2, version.as_bytes(), out);
    put_bytes(3, token.as_bytes(), out);
    let mut timing = BytesMut::with_capacity(64);
    for (tag, spent) in [(1, stages.total), (2, stages.queue), (3, stages.tower), (4, stages.search)] {
        let mut duration = BytesMut::with_capacity(16);
        for (part, value) in [(1, spent.as_secs()), (2, u64::from(spent.subsec_nanos()))] {
            if value > 0 {
                encode_key(part, WireType::Varint, &mut duration);
                encode_varint(value, &mut duration);
            }
        }
        put_bytes(tag, &duration, &mut timing);
    }
    put_bytes(4, &timing, out);
}

/// Return the encoded size of a field of `size` bytes, with its key (for a tag below 16) and its length.
fn delimited(size: usize) -> usize {
    1 + encoded_len_varint(size as u64) + size
}

fn put_head(tag: u32, size: usize, out: &mut BytesMut) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(size as u64, out);
}

fn put_bytes(tag: u32, bytes: &[u8], out: &mut BytesMut) {
    put_head(tag, bytes.len(), out);
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `RetrieveResponse` as prost reads it.
    #[derive(Clone, PartialEq, Message)]
    struct Response {
        #[prost(message, repeated, tag = "1")]
        hits: Vec<ReadHits>,
        #[prost(string, tag = "2")]
        bundle_version: String,
        #[prost(string, tag = "3")]
        attribution_token: String,
        #[prost(message, optional, tag = "4")]
        timing: Option<Timing>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct ReadHits {
        #[prost(string, repeated, tag = "1")]
        item_ids: Vec<String>,
        #[prost(float, repeated, tag = "2")]
        scores: Vec<f32>,
        #[prost(string, repeated, tag = "3")]
        missing_item_ids: Vec<String>,
        #[prost(bool, tag = "4")]
        fallback: bool,
        #[prost(bool, tag = "5")]
        seen_bounded: bool,
        #[prost(bool, tag = "6")]
        complete: bool,
        #[prost(bool, repeated, tag = "7")]
        cold: Vec<bool>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Timing {
        #[prost(message, optional, tag = "1")]
        total: Option<Span>,
        #[prost(message, optional, tag = "2")]
        queue: Option<Span>,
        #[prost(message, optional, tag = "3")]
        tower: Option<Span>,
        #[prost(message, optional, tag = "4")]
        search: Option<Span>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Span {
        #[prost(int64, tag = "1")]
        seconds: i64,
        #[prost(int32, tag = "2")]
        nanos: i32,
    }

    #[test]
    fn an_answer_reads_as_what_was_written() {
        let long = "x".repeat(300);
        let missing = Bytes::from_static(b"gone");
        let mut out = BytesMut::new();
        let full = Hits {
            ids: vec!["a", &long, "Žluť"],
            scores: &[2.5, -1.0, 0.0],
            missing: vec![&missing],
            fallback: false,
            seen_bounded: true,
            complete: true,
            cold: &[false, true, false],
        };
        let empty = Hits {
            ids: vec![],
            scores: &[],
            missing: vec![],
            fallback: true,
            seen_bounded: false,
            complete: false,
            cold: &[],
        };
        full.put(&mut out);
        empty.put(&mut out);
        let stages = Stages {
            total: Duration::from_millis(1500),
            queue: Duration::ZERO,
            tower: Duration::from_nanos(1),
            search: Duration::from_secs(2),
        };
        put_end("v1", "v1/0", &stages, &mut out);
        let read = Response::decode(out.freeze()).expect("a message");
        assert_eq!(read.hits[0].item_ids, ["a", &long, "Žluť"]);
        assert_eq!(read.hits[0].scores, [2.5, -1.0, 0.0]);
        assert_eq!(read.hits[0].missing_item_ids, ["gone"]);
        assert_eq!(read.hits[0].cold, [false, true, false]);
        assert!(read.hits[0].seen_bounded && read.hits[0].complete && !read.hits[0].fallback);
        assert_eq!(read.hits[1], ReadHits { fallback: true, ..Default::default() });
        assert_eq!((read.bundle_version.as_str(), read.attribution_token.as_str()), ("v1", "v1/0"));
        let timing = read.timing.expect("timing");
        assert_eq!(timing.total, Some(Span { seconds: 1, nanos: 500_000_000 }));
        assert_eq!(timing.queue, Some(Span::default()));
        assert_eq!(timing.tower, Some(Span { seconds: 0, nanos: 1 }));
        assert_eq!(timing.search, Some(Span { seconds: 2, nanos: 0 }));
    }
}
