"""What a consumer reads: its subscription, its assigned partitions and its positions."""
