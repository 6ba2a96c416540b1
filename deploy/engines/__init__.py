"""Kafka and Flink on this machine: ``make engines``, ``make engines-stop`` (docs/engines.md).

`settings` says which versions and ports, `fetch` brings the jars, `kafka` and `flink` say what to run, `processes`
starts and stops it.
"""
