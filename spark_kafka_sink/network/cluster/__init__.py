"""The client's view of a cluster: its nodes and topics, and when to refresh them."""
