"""The item table: rows, admission and eviction of items, embeddings and features, sharded over ranks."""
