"""Bytes over TCP and TLS: names, sockets, and what is said of their errors."""
