"""Demo logs: a generator, and the replay of a finished log as a stream."""
