"""A Kafka topic as the log: `pipeline.log = kafka://host:port[,host:port]/topic` (docs/kafka.md).

`address` names a topic, `config` holds the settings, `client` asks the brokers, `topic_input` is what the driver sees,
`ranges` plans what a run reads, and `consume` reads it.
"""
