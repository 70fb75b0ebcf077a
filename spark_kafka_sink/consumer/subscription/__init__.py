"""The subscription of a consumer, its assigned partitions and its positions."""
