"""Metrics: sensors, statistics over sampled windows, a registry, reporters and snapshots."""
