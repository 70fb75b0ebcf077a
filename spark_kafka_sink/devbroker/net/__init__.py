"""Sockets: listeners, connections, frames, and the faults that tests inject."""
