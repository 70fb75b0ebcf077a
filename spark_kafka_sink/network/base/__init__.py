"""Threads for calls that block, time-outs, and pauses between attempts."""
