"""The Spark integration: the only layer that imports pyspark."""
