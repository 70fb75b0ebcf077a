"""Settings: one table row per setting, parsed into frozen configuration objects."""
