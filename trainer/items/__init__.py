"""The item table: rows, admission and vectors."""
