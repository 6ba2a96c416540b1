from .batch.ingest import IngestSummary, ingest
from .config import PipelineConfig, SketchConfig
from .transforms.chain import BlocksToWindows, ReadBlocks

__all__ = [
    "BlocksToWindows",
    "IngestSummary",
    "PipelineConfig",
    "ReadBlocks",
    "SketchConfig",
    "ingest",
]
