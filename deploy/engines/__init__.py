"""Kafka and Flink on this machine: ``make engines``, ``make engines-stop`` (docs/install.md).

`settings` says which versions and ports, `fetch` brings the jars, `kafka` and `flink` say what to run, `processes`
starts and stops it.
"""
