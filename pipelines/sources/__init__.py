"""Where rows come from: files, a Kafka topic, and the plan of what a run reads of them."""
