"""Builds the protobuf answers of Retrieve, Embed and GetInfo from the results of a search."""

from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from weir.contracts import MAX_ID_BYTES
from weir.contracts.storage.format import software_version
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.config import ServingConfig
from weir.serving.search.queries import Hits

__all__ = ["TOKEN_BYTES", "embed_response", "info_response", "retrieve_response"]

TOKEN_BYTES: Final = 256
"""Bytes reserved for the attribution token of an answer."""

_METRICS: Final = {"inner_product": pb.METRIC_INNER_PRODUCT, "cosine": pb.METRIC_COSINE}


def retrieve_response(
    bundle_version: str, hits: Sequence[Hits], seconds: Iterable[tuple[str, float]]
) -> pb.RetrieveResponse:
    """Build the answer of Retrieve without its attribution token; `seconds` are (stage, seconds) pairs."""
    return pb.RetrieveResponse(
        hits=[
            pb.Hits(
                item_ids=found.ids,
                scores=found.scores,
                missing_item_ids=found.missing,
                fallback=found.fallback,
                seen_bounded=found.seen_bounded,
                complete=found.complete,
                cold=found.cold,
                missing_features=found.missing_features,
            )
            for found in hits
        ],
        bundle_version=bundle_version,
        timing=_timing(seconds),
    )


def embed_response(bundle_version: str, hits: Sequence[Hits], seconds: Iterable[tuple[str, float]]) -> pb.EmbedResponse:
    """Build the answer of Embed; `seconds` are (stage, seconds) pairs."""
    vectors = [
        pb.QueryVector(
            values=[] if found.vector is None else found.vector.tolist(),
            missing_item_ids=found.missing,
            fallback=found.fallback,
            missing_features=found.missing_features,
        )
        for found in hits
    ]
    return pb.EmbedResponse(vectors=vectors, bundle_version=bundle_version, timing=_timing(seconds))


def info_response(bundles: Sequence[LoadedBundle], config: ServingConfig) -> pb.GetInfoResponse:
    """Build the answer of GetInfo: the facts of the first bundle, the versions of all bundles, and the limits."""
    bundle = bundles[0]
    manifest = bundle.manifest
    newest, servable = Timestamp(), Timestamp()
    newest.FromMilliseconds(manifest.max_event_ms)
    servable.FromNanoseconds(round(bundle.servable_at * 1e9))
    return pb.GetInfoResponse(
        bundle_version=manifest.version,
        sketch_version=manifest.trained_window,
        trained_sequence=manifest.trained_sequence,
        index=pb.Index(type=manifest.index.type, parameters=manifest.index.parameters, lists=bundle.index.lists),
        items=bundle.items,
        dimension=manifest.dimension,
        metric=_METRICS[manifest.metric],
        max_event_time=newest,
        servable_time=servable,
        evaluation=manifest.evaluation,
        limits=pb.Limits(
            **config.limits.model_dump(), max_id_bytes=MAX_ID_BYTES, max_request_bytes=config.max_request_bytes
        ),
        software_version=software_version(),
        bundle_software_version=manifest.software_version,
        delta_updates=pb.DELTA_UPDATES_IN_PLACE if bundle.changeable else pb.DELTA_UPDATES_BESIDE,
        user_features=_features(bundle),
        loaded=[pb.LoadedBundle(bundle_version=one.version, variant=one.manifest.variant) for one in bundles],
    )


def _features(bundle: LoadedBundle) -> pb.UserFeatures | None:
    if bundle.user_features is None:
        return None
    names = bundle.user_features.names
    return pb.UserFeatures(categorical=names.categorical, dense=names.dense)


def _timing(seconds: Iterable[tuple[str, float]]) -> pb.Timing:
    return pb.Timing(
        **{stage: Duration(nanos=round(value * 1e9) % 10**9, seconds=int(value)) for stage, value in seconds}
    )
