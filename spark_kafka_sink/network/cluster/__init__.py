"""What is known of a cluster: its nodes, its topics, and when to ask again."""
