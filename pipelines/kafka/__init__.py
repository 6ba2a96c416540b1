"""A Kafka topic as the log: `pipeline.log = kafka://host:port[,host:port]/topic` (docs/kafka.md).

`source` is what the driver sees. `address` names a topic, `config` holds the settings, `client` asks the brokers,
`connection` holds consumers, `ranges` plans what a run reads, `read` and `consume` read it, `lines` and `messages` make
lines of its values. `copying` makes files of a topic, for those who read a finished log.
"""
