"""The membership in a group of the consumer protocol of KIP-848: heartbeats and assignments."""
