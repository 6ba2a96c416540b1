"""From queries to hits: cost, plan, retrieval and re-scoring."""
