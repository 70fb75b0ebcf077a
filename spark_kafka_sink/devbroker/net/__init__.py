"""Sockets: listeners, connections, frames, SASL, and the faults that tests inject."""
