"""The pipeline: from the interaction log to committed windows.

Read `chain` for the transforms in their order, `ingest` for the bounded driver, `positions` for what makes
every event count exactly once.
"""

__all__: list[str] = []
