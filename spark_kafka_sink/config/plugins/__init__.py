"""The plug-ins that settings name."""
