"""The pipeline as an endless job on Flink."""
