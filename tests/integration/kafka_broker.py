"""A real Kafka broker on loopback: one node without ZooKeeper, from the jars that `make tools` fetches.

One of its listeners is encrypted and asks for a password.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from deploy.engines.settings import EngineSettings
from tests.ports import free_port

USER, PASSWORD = "reader", "something-long"
_HEAP = "-Xmx256m"
_LOGGING = """
log4j.rootLogger=ERROR, E
log4j.appender.E=org.apache.log4j.ConsoleAppender
log4j.appender.E.layout=org.apache.log4j.SimpleLayout
"""


@dataclass
class Broker:
    """A running broker.

    `sasl` is the address of the listener with TLS and a password, `ca` the certificate that it can be verified with.
    """

    address: str
    sasl: str
    ca: Path
    process: "subprocess.Popen[bytes]"
    command: list[str]
    folder: Path

    def url(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int = 3, **settings: str) -> None:
        admin = self.admin()
        for future in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
            future.result(30)
        self._await(admin, topic, is_there=True)

    def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic more partitions."""
        admin = self.admin()
        for future in admin.create_partitions([NewPartitions(topic, count)]).values():
            future.result(30)

    def drop(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages below an offset."""
        admin = self.admin()
        for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(30)

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Let a consumer group have read a partition up to an offset."""
        admin = self.admin()
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        for future in admin.alter_consumer_group_offsets([request]).values():
            future.result(30)

    def count(self, topic: str, partition: int = 0) -> int:
        """Return how many messages a partition has, whatever its offsets."""
        ways = {"bootstrap.servers": self.address, "group.id": "count", "enable.partition.eof": True, "log_level": 0}
        consumer, found = Consumer(ways), 0
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found += 1
        consumer.close()
        return found

    def delete(self, topic: str) -> None:
        admin = self.admin()
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        self._await(admin, topic, is_there=False)

    def _await(self, admin: AdminClient, topic: str, *, is_there: bool) -> None:
        """Metadata follow a change after a moment."""
        for _ in range(300):
            if (topic in admin.list_topics(timeout=30).topics) == is_there:
                return
            time.sleep(0.1)
        raise AssertionError(f"{topic} is {'not ' if is_there else ''}there")

    def producer(self, **settings: str | int) -> Producer:
        return Producer({"bootstrap.servers": self.address, "linger.ms": 5, "acks": "all", "log_level": 0} | settings)

    def send(self, topic: str, values: list[bytes | None], partition: int = 0, timestamp_ms: int | None = None) -> None:
        """Write messages and wait until the broker has them."""
        producer, stamp = self.producer(), {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        for number, value in enumerate(values):
            producer.produce(topic, value, str(number).encode(), partition, **stamp)
        assert producer.flush(60) == 0

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the broker answer nobody for a while."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill the broker and start it again on its data."""
        self.process.kill()
        self.process.wait(30)
        self.process = _start(self.command, self.folder)
        _wait_for(self, self.folder / "kafka.log")


def jars() -> Path | None:
    """The folder of the broker's jars: of `make tools`, or of an installed Kafka."""
    installed = [Path(os.environ["KAFKA_HOME"]) / "libs"] if "KAFKA_HOME" in os.environ else []
    return next(
        (folder for folder in [EngineSettings().kafka_jars, *installed] if any(folder.glob("kafka_2*.jar"))), None
    )


@contextmanager
def kafka(folder: Path) -> Iterator[Broker]:
    """Run a broker with its data in a folder; skips the test where there is none to run."""
    found = jars()
    if found is None or shutil.which("java") is None:
        pytest.skip("no Kafka: `make tools` fetches it where there are Java and Maven")
    port, sasl, controller = free_port(), free_port(), free_port()
    settings = folder / "server.properties"
    ca = _make_certificate(folder)
    settings.write_text(_settings(folder, port, sasl, controller))
    (folder / "log4j.properties").write_text(_LOGGING)
    java = [
        "java",
        _HEAP,
        "-XX:+UseSerialGC",
        f"-Dlog4j.configuration=file:{folder}/log4j.properties",
        "-cp",
        f"{found}/*",
    ]
    with (folder / "kafka.log").open("wb") as log:
        made = [*java, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(settings)]
        subprocess.run(made, check=True, stdout=log, stderr=log)
    command = [*java, "kafka.Kafka", str(settings)]
    broker = Broker(f"127.0.0.1:{port}", f"127.0.0.1:{sasl}", ca, _start(command, folder), command, folder)
    try:
        _wait_for(broker, folder / "kafka.log")
        yield broker
    finally:
        broker.process.kill()
        broker.process.wait(30)


def _start(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "kafka.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def ends(broker: Broker, topic: str, partition: int = 0) -> int:
    """The offset after the newest message, whatever transaction it belongs to."""
    # Without a name the client would be gone before the answer comes.
    admin = broker.admin()
    [future] = admin.list_offsets({TopicPartition(topic, partition): OffsetSpec.latest()}).values()
    return int(future.result(30).offset)


def _make_certificate(folder: Path) -> Path:
    """Make the broker's key and its certificate; keytool comes with Java."""
    keys = ["-alias", "broker", "-keystore", f"{folder}/keys.p12", "-storepass", PASSWORD]
    name = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-validity", "2"]
    made = ["keytool", "-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-storetype", "PKCS12", *name, *keys]
    subprocess.run(made, check=True, capture_output=True)
    ca = folder / "ca.pem"
    subprocess.run(["keytool", "-exportcert", "-rfc", "-file", str(ca), *keys], check=True, capture_output=True)
    return ca


def _settings(folder: Path, port: int, sasl: int, controller: int) -> str:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config={login} required user_{USER}="{PASSWORD}";
listener.name.sasl.ssl.keystore.type=PKCS12
listener.name.sasl.ssl.keystore.location={folder}/keys.p12
listener.name.sasl.ssl.keystore.password={PASSWORD}
log.dirs={folder}/data
log.retention.ms=-1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=200
"""


def _wait_for(broker: Broker, log: Path) -> None:
    for _ in range(600):
        assert broker.process.poll() is None, f"Kafka has ended: {log.read_text()[-2000:]}"
        try:
            broker.admin().list_topics(timeout=1)
        except Exception:  # noqa: BLE001, S112 - it is not up yet
            continue
        return
    raise AssertionError(f"Kafka does not answer: {log.read_text()[-2000:]}")
