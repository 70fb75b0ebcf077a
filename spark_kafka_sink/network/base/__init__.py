"""Threads for blocking calls, timeouts, and the back-off between attempts."""
