"""The server's settings."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from weir.contracts import LocalCache
from weir.contracts.base.models import FrozenModel
from weir.runtime.listening import Host
from weir.serving.access_config import AuthConfig, TlsConfig

__all__ = ["LimitsConfig", "ServedConfig", "ServingConfig", "TracingConfig"]


class ServedConfig(FrozenModel):
    """Which answers are kept in the store, and for how long."""

    share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of answers that are kept in the store, to be joined with what users do; with more than 0 "
        "servers need the right to write and remove below served/",
    )
    flush_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="how often a server writes a file of served lists, seconds; a killed one loses so much of them",
    )
    max_waiting_items: int = Field(
        default=1_000_000,
        ge=1000,
        description="items of lists that wait to be written, about 10 bytes each; lists beyond are dropped and counted",
    )
    keep_days: float = Field(
        default=7.0, ge=0, description="how long served lists stay after the hour in which they were kept, days"
    )


class LimitsConfig(FrozenModel):
    """What one request may ask for; more is INVALID_ARGUMENT."""

    max_queries: int = Field(default=256, ge=1, description="queries per request")
    max_k: int = Field(default=1000, ge=1, description="items per query")
    max_history_item_ids: int = Field(default=1000, ge=1, description="item ids per history in a request")
    max_excluded_item_ids: int = Field(default=1000, ge=0, description="item ids that a request excludes")
    max_allowed_item_ids: int = Field(default=10_000, ge=0, description="item ids that a filter allows")
    max_filter_tags: int = Field(
        default=100, ge=0, description="tags in each of any_tags, all_tags and none_tags of a filter"
    )
    max_item_ids: int = Field(
        default=50_000, ge=1, description="item ids per request: of all histories, excluded and allowed"
    )
    max_feature_values: int = Field(
        default=10_000, ge=0, description="values of user features per request, of all queries; a number counts as one"
    )
    max_cost: int = Field(
        default=500_000,
        ge=1000,
        description="estimated cost of a request, roughly microseconds of one core; see docs/serving.md",
    )

    max_answer_bytes: int = Field(
        default=4 << 20,
        ge=1 << 10,
        description="bytes of an answer; 4 MiB is what clients of gRPC take unless their channel says otherwise: with "
        "more, set grpc.max_receive_message_length at every client (weir.client takes any size)",
    )

    @property
    def fields(self) -> int:
        """Upper bound on the protobuf fields of a request within the limits: an id or tag is one, a value four."""
        ids = self.max_item_ids + 3 * self.max_filter_tags
        return ids + 4 * self.max_feature_values + 4 * self.max_queries + 16


class TracingConfig(FrozenModel):
    """Where traces of calls go; it needs the extra `tracing`."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]+$",
        description="collector that takes OTLP over gRPC, such as http://127.0.0.1:4317 (https:// for TLS); null: no "
        "traces are kept",
    )
    ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of traces that are kept, of calls without `traceparent`; with it, its flag decides",
    )


class ServingConfig(FrozenModel):
    """How a server process listens, batches and follows the store."""

    host: Host = Field(
        default="127.0.0.1",
        description="name or address to listen on, IPv6 with or without brackets; 0.0.0.0, or :: with IPv6, for every "
        "interface: with `tls` and `auth`",
    )
    port: int = Field(default=50051, ge=0, le=65535, description="gRPC port; 0 takes a free one, which is logged")
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the same service as JSON over HTTP, on `host`; 0 takes a free one; null: none",
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="plain-text port of the health service alone, for probes that speak no TLS, as the kubelet's; "
        "null: none",
    )
    tls: TlsConfig = Field(default_factory=TlsConfig, description="the server's certificate")
    auth: AuthConfig = Field(default_factory=AuthConfig, description="who may call")
    metrics_host: Host = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9103, ge=0, le=65535, description="port of /metrics; 0 takes a free one")
    reflection: bool = Field(default=True, description="let clients such as grpcurl read the service's schema")
    device: Literal["auto", "cpu", "gpu"] = Field(
        default="auto", description="where the index is searched; auto: a GPU where faiss-gpu finds one"
    )
    threads: int = Field(
        default=1, ge=1, description="threads per tower run or search; more replicas scale better than more threads"
    )
    front: Literal["python", "native"] = Field(
        default="python",
        description="what callers of gRPC reach: python, or native, a compiled front (the package weir-front), which "
        "answers plain requests for less than half of the CPU and passes all others on",
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=64,
        description="processes that answer on the same port, one for each core; they share one bundle in memory, which "
        "a further one builds. Limits of queues, connections and callers hold for each. Searches run on the CPU",
    )
    max_batch_queries: int = Field(default=256, ge=1, description="largest number of queries answered together")
    max_batch_cost: int = Field(
        default=20_000,
        ge=1000,
        description="largest cost of a batch, roughly microseconds: how long a cheap request may wait for others",
    )
    max_batch_seconds: float = Field(
        default=30.0, gt=0, description="a batch that runs longer makes `liveness` NOT_SERVING, seconds"
    )
    queue_queries: int = Field(
        default=1024, ge=1, description="queries that may wait; further requests are refused at once"
    )
    queue_calls: int = Field(
        default=64,
        ge=1,
        description="calls of a method that may wait unread; gRPC cancels further ones at once, before they cost much. "
        "Calls per second, times a quarter of the callers' deadline",
    )
    retry_after_seconds: float = Field(default=0.1, gt=0, description="retry delay sent to a refused client, seconds")
    poll_seconds: float = Field(default=0.3, gt=0, description="interval between checks of the store, seconds")
    drain_seconds: float = Field(
        default=0.0,
        ge=0,
        description="after SIGTERM, how long requests are still accepted while health reports NOT_SERVING, seconds; "
        "as long as load balancers need to notice",
    )
    grace_seconds: float = Field(
        default=10.0, ge=0, description="after draining, how long requests in progress may take, seconds"
    )
    max_connection_age_seconds: float = Field(
        default=300.0, gt=0, description="connections older than this are renewed, so that new replicas get their share"
    )
    max_connections: int = Field(
        default=4096, ge=1, description="open connections; further ones are refused, existing ones continue"
    )
    max_streams_per_connection: int = Field(
        default=256, ge=1, description="concurrent calls per connection; further ones wait at the client"
    )
    max_connection_idle_seconds: float = Field(
        default=300.0, gt=0, description="connections without a call for this long are closed, seconds"
    )
    max_request_bytes: int = Field(
        default=16 << 20, ge=1 << 16, description="larger requests are refused unread, bytes"
    )
    deltas: Literal["auto", "clone", "in_place"] = Field(
        default="auto",
        description="how a delta bundle is taken: clone, on a copy of the index beside the served one; in_place, in "
        "the served index between two batches, at a cost that follows the change; auto: in_place, but clone for more "
        "than 20,000 changed rows, which would hold up queries, where memory has room for two indexes",
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=1 << 28,
        description="memory that the process may use; null: the limit of its control group (container), else the "
        "machine's. Where two bundles do not fit, the served one is dropped before another complete one is read",
    )
    cache_dir: Path | None = Field(
        default=None,
        description="folder for history files that are fetched from an object store; null: weir-cache-UID in the "
        "system's folder for temporary files. Processes may share it, and a restart finds its files there",
    )
    cache_bytes: int = Field(
        default=64 << 30, ge=1 << 20, description="most bytes of fetched files that are kept on this machine's disk"
    )
    challenger_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of users who are answered from the challenger's bundle, where trainer.variants has one "
        "(docs/serving.md)",
    )
    cold_items: int = Field(
        default=10_000,
        ge=0,
        description="most items of the catalogue that are answered from their features, because the bundle does not "
        "have them; of more, the last ones in the catalogue. Each search compares all of them. 0: none",
    )
    rescored_candidates: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="best items of the index that are scored again, where the bundle has a second phase "
        "(docs/serving.md#re-scoring); null: trainer.rescoring.candidates, as it was at the export; 0: none",
    )
    histories: str = Field(
        default="files",
        pattern=r"^(files$|rediss?://|unix://)",
        description="where users are looked up: files, those of the store, or a Redis that `weir histories` fills, "
        "redis://HOST:6379/0 (rediss:// for TLS; the password in the URL or in WEIR_REDIS_PASSWORD)",
    )
    histories_timeout_seconds: float = Field(
        default=0.05, gt=0, description="how long a batch waits for Redis before its users count as unknown, seconds"
    )
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="what one request may ask for")
    served: ServedConfig = Field(
        default_factory=ServedConfig, description="answers that are kept in the store, for attribution"
    )
    tracing: TracingConfig = Field(default_factory=TracingConfig, description="traces of calls")
    access_log: bool = Field(
        default=False, description="write a line of JSON for each call to standard output; nothing of what was asked"
    )

    @model_validator(mode="after")
    def _knows_callers(self) -> Self:
        auth = self.auth
        is_known = auth.jwks is not None or self.tls.client_ca_file is not None
        if not is_known and (auth.allow != AuthConfig().allow or auth.calls_per_second is not None):
            raise ValueError(
                "auth.allow and auth.calls_per_second need auth.jwks or tls.client_ca_file to know callers"
            )
        return self

    @property
    def most_calls(self) -> int:
        """Most calls that may be in progress, whatever their deadlines."""
        return self.queue_queries + self.max_batch_queries

    @property
    def unread_calls(self) -> int:
        """Most calls that gRPC holds until Python takes them.

        With a call rate per caller these are all calls that may be in progress; with fewer, gRPC would cancel calls of
        a caller's burst without a reason.
        """
        return self.queue_calls if self.auth.calls_per_second is None else max(self.queue_calls, self.most_calls)

    @property
    def cache(self) -> LocalCache:
        """The local cache of files fetched from an object store."""
        if self.cache_dir is None:
            return LocalCache(limit=self.cache_bytes)
        return LocalCache(self.cache_dir, self.cache_bytes)
