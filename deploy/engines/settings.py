"""Which engines, where they listen, and where their files are: ``ENGINES_...`` variables, else these defaults."""

import sys
from pathlib import Path
from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["HERE", "HOST", "ROOT", "EngineSettings"]

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
HOST: Final = "127.0.0.1"
"""Nothing listens elsewhere: anyone who reaches these ports can run code here."""


class EngineSettings(BaseSettings):
    """Versions, ports and folders of the engines."""

    model_config = SettingsConfigDict(env_prefix="ENGINES_", frozen=True)

    tools: Path = Field(default=Path(sys.prefix) / "tools", description="folder of what is fetched")
    folder: Path = Field(default=ROOT / "build/engines", description="folder of logs, topics and checkpoints")

    kafka_version: str = "3.9.1"
    flink_version: str = "1.19.3"
    beam_version: str = Field(default="2.70.0", description="of the Java job server; need not be that of Python's Beam")
    job_service_version: str = Field(default="2.65.0", description="of the job server's beam-runners-java-job-service")

    kafka_port: int = 19092
    controller_port: int = 19093
    flink_port: int = Field(default=8081, description="Flink's REST API and pages")
    flink_rpc_port: int = 6123
    job_port: int = 8099
    artifact_port: int = 8098
    pool_port: int = Field(default=50000, description="Python workers")

    task_slots: int = Field(default=2, ge=1, description="the highest parallelism of a job")
    start_seconds: float = Field(default=120, gt=0, description="time for an engine to answer after its start")

    @property
    def kafka_jars(self) -> Path:
        """Folder of Kafka's jars."""
        return self.tools / f"kafka-{self.kafka_version}"

    @property
    def flink_jars(self) -> Path:
        """Folder of Flink's jars."""
        return self.tools / f"flink-{self.flink_version}"

    @property
    def flink_line(self) -> str:
        """Flink's minor version, for which Beam has a runner each: 1.19."""
        return ".".join(self.flink_version.split(".")[:2])

    @property
    def job_server_jars(self) -> Path:
        """Folder of the job server's jar."""
        return self.tools / f"beam-{self.beam_version}-{self.job_service_version}-flink-{self.flink_line}"
