"""The Beam pipeline: from an interaction log to committed windows."""
