"""What a write says: lines of logs, and the reports that are kept for the user's session."""
