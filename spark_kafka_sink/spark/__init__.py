"""The Spark edge: the only layer that imports pyspark."""
