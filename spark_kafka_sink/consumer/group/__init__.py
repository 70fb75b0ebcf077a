"""The membership in a group, by both protocols: joins, heartbeats, assignments and commits."""
