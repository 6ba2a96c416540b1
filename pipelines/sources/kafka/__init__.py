"""A Kafka topic as the log: `pipeline.log = kafka://host:port[,host:port]/topic` (docs/kafka.md)."""
