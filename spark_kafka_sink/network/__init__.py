"""Sockets, connections and cluster metadata: everything that waits for a broker."""
