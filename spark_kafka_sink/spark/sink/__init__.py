"""How Spark writes to Kafka: checks on the driver, tasks, streams and reports."""
