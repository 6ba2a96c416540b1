"""Sources of rows: files, a Kafka topic, and the plan of what a run reads."""
