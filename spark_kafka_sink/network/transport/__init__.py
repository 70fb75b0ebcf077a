"""Bytes over TCP and TLS: host names, sockets, and the messages of their errors."""
