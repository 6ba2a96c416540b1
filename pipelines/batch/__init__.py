"""Bounded runs: ingest, retry of dead letters, rebuild and cut-over."""
