"""What a consumer reads: its subscription, its positions, and its membership in a group."""
