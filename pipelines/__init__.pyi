from .chain import BlocksToWindows, ReadBlocks
from .config import PipelineConfig, SketchConfig
from .ingest import IngestSummary, ingest

__all__ = [
    "BlocksToWindows",
    "IngestSummary",
    "PipelineConfig",
    "ReadBlocks",
    "SketchConfig",
    "ingest",
]
