"""What a log holds, and which settings fit it: a sample, read and judged as the pipeline reads and judges all of it."""
