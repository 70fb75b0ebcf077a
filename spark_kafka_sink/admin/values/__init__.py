"""The values that `AdminClient` takes and returns."""
