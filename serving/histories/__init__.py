"""Users' histories, from the files of the store or from Redis."""
