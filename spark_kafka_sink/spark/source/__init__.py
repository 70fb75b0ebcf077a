"""The source of Spark reads: batches and streams."""
