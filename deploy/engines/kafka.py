"""A Kafka broker of one node, its own controller (KRaft), without encryption."""

import subprocess
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.engines.processes import EngineError, Service
from deploy.engines.settings import HOST, EngineSettings

__all__ = ["broker"]

_CLUSTER = "d2VpcnMtZW5naW5lcw"
"""The identity of the cluster: 16 bytes in base64."""
_LOGGING = """\
log4j.rootLogger=WARN, OUT
log4j.appender.OUT=org.apache.log4j.ConsoleAppender
log4j.appender.OUT.layout=org.apache.log4j.PatternLayout
log4j.appender.OUT.layout.ConversionPattern=%d %p %c %m%n
"""


def broker(settings: EngineSettings) -> Service:
    """Return the broker; its topics outlive a stop."""
    folder = settings.folder / "kafka"
    java = ["java", "-Xmx512m", f"-Dlog4j.configuration=file:{folder}/log4j.properties"]
    java += ["-cp", f"{settings.kafka_jars}/*"]

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j.properties").write_text(_LOGGING)
        (folder / "server.properties").write_text(_properties(settings, folder))
        if not (folder / "data/meta.properties").exists():
            _format(java, folder)

    return Service(
        name="kafka",
        folder=settings.folder,
        command=[*java, "kafka.Kafka", f"{folder}/server.properties"],
        ports={settings.kafka_port: "ENGINES_KAFKA_PORT", settings.controller_port: "ENGINES_CONTROLLER_PORT"},
        answers=lambda: _answers(settings),
        prepare=prepare,
    )


def _format(java: list[str], folder: Path) -> None:
    made = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", f"{folder}/server.properties"]
    done = subprocess.run(made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"kafka cannot make its folder {folder}/data:\n{done.stdout[-3000:]}")


def _answers(settings: EngineSettings) -> bool:
    """Ask the broker for its metadata."""
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{settings.kafka_port}", "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _properties(settings: EngineSettings, folder: Path) -> str:
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{HOST}:{settings.controller_port}
listeners=PLAINTEXT://{HOST}:{settings.kafka_port},CONTROLLER://{HOST}:{settings.controller_port}
advertised.listeners=PLAINTEXT://{HOST}:{settings.kafka_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
num.partitions=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
"""
