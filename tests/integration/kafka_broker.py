"""A real Kafka broker on loopback: one node without ZooKeeper, from the jars that `make tools` fetches.

Two of its listeners are encrypted: one asks for a password, the other for a certificate. One more is known by a name,
and may move to another address (`tests.integration.named_hosts`).
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import load_key_and_certificates

from deploy.engines.settings import HOST, EngineSettings
from tests.ports import free_port

NAME = "weir-kafka.test"
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

    `named` is the address of the listener that is known as `NAME`, `sasl` of the one with TLS and a password, `mtls` of
    that which asks for a certificate, `ca` the certificate that both can be verified with. `client` holds a client's
    certificate and its key, encrypted with `PASSWORD`.
    """

    address: str
    named: str
    sasl: str
    mtls: str
    ca: Path
    client: tuple[Path, Path]
    log: Path
    settings: Path
    launch: "Callable[[], subprocess.Popen[bytes]]"
    process: "subprocess.Popen[bytes]"

    def url(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def move(self, address: str) -> None:
        """Let the listener that is known by a name be at another address from the next start on."""
        port = self.named.rpartition(":")[2]
        self.settings.write_text(
            re.sub(rf"NAMED://[0-9.]+:{port}", f"NAMED://{address}:{port}", self.settings.read_text())
        )

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int = 3, **settings: str) -> None:
        admin = self.admin()
        for future in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
            future.result(30)
        self._await(admin, topic, partitions=partitions)

    def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic more partitions."""
        admin = self.admin()
        for future in admin.create_partitions([NewPartitions(topic, count)]).values():
            future.result(30)
        self._await(admin, topic, partitions=count)

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
        self._await(admin, topic, partitions=0)

    def _await(self, admin: AdminClient, topic: str, *, partitions: int) -> None:
        """Metadata follow a change after a moment; a topic that is not there has no partition."""
        found = -1
        for _ in range(300):
            known = admin.list_topics(timeout=30).topics
            if (found := len(known[topic].partitions) if topic in known else 0) == partitions:
                return
            time.sleep(0.1)
        raise AssertionError(f"{topic} has {found} partitions, expected {partitions}")

    def producer(self, **settings: str | int) -> Producer:
        return Producer({"bootstrap.servers": self.address, "linger.ms": 5, "acks": "all", "log_level": 0} | settings)

    def send(self, topic: str, values: list[bytes | None], partition: int = 0, timestamp_ms: int | None = None) -> None:
        """Write messages and wait until the broker has them."""
        producer, stamp = self.producer(), {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        refused: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error.str())

        for number, value in enumerate(values):
            producer.produce(topic, value, str(number).encode(), partition, on_delivery=delivered, **stamp)
        assert producer.flush(60) == 0
        assert not refused, refused

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the broker answer nobody for a while."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Let the broker be gone for a while, and its connections with it."""
        self.process.kill()
        self.process.wait(30)
        try:
            yield
        finally:
            self.process = self.launch()
            _wait_for(self)


def jars() -> Path | None:
    """The folder of the broker's jars: of `make tools`, or of an installed Kafka."""
    installed = [Path(os.environ["KAFKA_HOME"]) / "libs"] if "KAFKA_HOME" in os.environ else []
    return next(
        (folder for folder in [EngineSettings().kafka_jars, *installed] if any(folder.glob("kafka_2*.jar"))), None
    )


@contextmanager
def kafka(folder: Path, changes: str = "") -> Iterator[Broker]:
    """Run a broker with its data in a folder; skips the test where there is none to run.

    `changes` are lines of its settings, which replace those of the same name.
    """
    found = jars()
    if found is None or shutil.which("java") is None:
        pytest.skip("no Kafka: `make tools` fetches it where there are Java and Maven")
    port, named, sasl, mtls, controller = (free_port() for _ in range(5))
    settings = folder / "server.properties"
    ca, client = _make_certificate(folder, "broker"), _make_client(folder)
    settings.write_text(_settings(folder, (port, named, sasl, mtls, controller)) + changes)
    (folder / "log4j.properties").write_text(_LOGGING)
    java = [
        "java",
        _HEAP,
        "-XX:+UseSerialGC",
        f"-Dlog4j.configuration=file:{folder}/log4j.properties",
        "-cp",
        f"{found}/*",
    ]
    made = [*java, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(settings)]
    subprocess.run(made, check=True, capture_output=True)

    def launch() -> "subprocess.Popen[bytes]":
        with (folder / "kafka.log").open("ab") as log:
            return subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)

    addresses = (f"{host}:{one}" for host, one in ((HOST, port), (NAME, named), (HOST, sasl), (HOST, mtls)))
    broker = Broker(*addresses, ca, client, folder / "kafka.log", settings, launch, launch())
    try:
        _wait_for(broker)
        yield broker
    finally:
        broker.process.kill()
        broker.process.wait(30)


def ends(broker: Broker, topic: str, partition: int = 0) -> int:
    """The offset after the newest message, whatever transaction it belongs to."""
    # Without a name the client would be gone before the answer comes.
    admin = broker.admin()
    [future] = admin.list_offsets({TopicPartition(topic, partition): OffsetSpec.latest()}).values()
    return int(future.result(30).offset)


def _make_certificate(folder: Path, name: str) -> Path:
    """Make a key in ``<name>.p12`` and its certificate; keytool comes with Java."""
    keys = ["-alias", name, "-keystore", f"{folder}/{name}.p12", "-storepass", PASSWORD]
    owner = ["-dname", f"CN={name}", "-ext", "san=ip:127.0.0.1", "-validity", "2"]
    made = ["keytool", "-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-storetype", "PKCS12", *owner, *keys]
    subprocess.run(made, check=True, capture_output=True)
    certificate = folder / f"{name}.pem"
    exported = ["keytool", "-exportcert", "-rfc", "-file", str(certificate), *keys]
    subprocess.run(exported, check=True, capture_output=True)
    return certificate


def _make_client(folder: Path) -> tuple[Path, Path]:
    """Make a client's certificate, and its encrypted key as PEM, which keytool cannot write."""
    certificate, secret = _make_certificate(folder, "client"), PASSWORD.encode()
    key, _, _ = load_key_and_certificates((folder / "client.p12").read_bytes(), secret)
    assert key is not None
    file = folder / "client-key.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(secret)))
    return certificate, file


def _settings(folder: Path, ports: tuple[int, int, int, int, int]) -> str:
    port, named, sasl, mtls, controller = ports
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    offered = f"PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl},MTLS://127.0.0.1:{mtls}"
    return f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={offered},NAMED://127.0.0.1:{named},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={offered},NAMED://{NAME}:{named}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,NAMED:PLAINTEXT,SASL:SASL_SSL,MTLS:SSL
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config={login} required user_{USER}="{PASSWORD}";
ssl.keystore.type=PKCS12
ssl.keystore.location={folder}/broker.p12
ssl.keystore.password={PASSWORD}
listener.name.mtls.ssl.client.auth=required
listener.name.mtls.ssl.truststore.type=PEM
listener.name.mtls.ssl.truststore.location={folder}/client.pem
log.dirs={folder}/data
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=200
"""


def _wait_for(broker: Broker) -> None:
    for _ in range(600):
        assert broker.process.poll() is None, f"Kafka has ended: {broker.log.read_text()[-2000:]}"
        try:
            broker.admin().list_topics(timeout=1)
        except Exception:  # noqa: BLE001, S112 - it is not up yet
            continue
        return
    raise AssertionError(f"Kafka does not answer: {broker.log.read_text()[-2000:]}")
