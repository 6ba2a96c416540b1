"""Beam's options for Flink, and the name of the job on a store."""

from typing import Final
from urllib.parse import urlsplit

import xxhash

from weir.contracts import Store
from weir.pipelines.stream.config import StreamConfig

__all__ = ["job_name", "pipeline_options"]

_LENGTH: Final = 40


def job_name(store: Store) -> str:
    """Return the name under which the stream of a store runs; two stores have different ones."""
    readable = "".join(
        one if one.isascii() and one.isalnum() else "-" for one in urlsplit(store.url).path.strip("/").lower()
    )
    return f"weir-{readable[-_LENGTH:].strip('-')}-{xxhash.xxh3_64_hexdigest(store.url.encode())[:8]}"


def pipeline_options(config: StreamConfig, name: str) -> list[str]:
    """Return the options of a streaming pipeline; `config.options` come last, and win."""
    # --shutdown_sources_after_idle_ms stays unset: 0 would stop all checkpoints.
    return [
        "--runner=PortableRunner",
        f"--job_endpoint={config.job_endpoint}",
        f"--artifact_endpoint={config.artifact_endpoint}",
        "--environment_type=EXTERNAL",
        f"--environment_config={config.worker_pool}",
        f"--parallelism={config.parallelism}",
        f"--sdk_worker_parallelism={config.parallelism}",
        f"--checkpointing_interval={round(1000 * config.checkpoint_seconds)}",
        f"--max_bundle_size={config.bundle_batches}",
        f"--max_bundle_time_mills={round(1000 * config.bundle_seconds)}",
        # Else what a bundle brings during a checkpoint is kept back, and the watermark is not.
        "--finish_bundle_before_checkpointing",
        # Else Beam asks pip what is installed, which images do not have, and sends the answer, which nobody reads.
        "--experiments=disable_logging_submission_environment",
        "--streaming",
        f"--job_name={name}",
        *config.options,
    ]
