"""A small store with files of every stage, for tests of what checks them."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.pipelines import aging
from weir.contracts import Store
from weir.pipelines.batch.ingest import ingest
from weir.trainer.settings.trainer import NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.train import train


def write_whole_store(folder: Path) -> Path:
    """Bring in five windows one by one, train on them, and return the folder of the store."""
    store = Store(str(folder / "store"))
    for number in range(5):
        aging.arrive(folder, number)
        ingest(store, aging.settings(folder), registry=CollectorRegistry())
    config = TrainerConfig(
        device="cpu",
        batch_size=8,
        tower=TowerConfig(dimension=4, history_length=3, heads=2),
        negatives=NegativesConfig(uniform=4),
        metrics_port=0,
    )
    train(store, config)
    return folder / "store"
