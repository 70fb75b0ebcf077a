"""Sockets: listeners, connections, frames, and the faults that tests ask for."""
