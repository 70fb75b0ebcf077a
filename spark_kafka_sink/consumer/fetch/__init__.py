"""The requests that fetch records: for a consumer at work, and for a bounded range."""
