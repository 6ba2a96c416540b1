from .chain import BlocksToWindows, ReadBlocks
from .config import LogColumns, PipelineConfig, SketchConfig
from .ingest import IngestSummary, ingest

__all__ = [
    "BlocksToWindows",
    "IngestSummary",
    "LogColumns",
    "PipelineConfig",
    "ReadBlocks",
    "SketchConfig",
    "ingest",
]
