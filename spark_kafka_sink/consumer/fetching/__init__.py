"""The requests that fetch records, and the rules for their errors."""
