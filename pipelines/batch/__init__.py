"""Bounded runs: ingest, rebuild and cut-over."""
