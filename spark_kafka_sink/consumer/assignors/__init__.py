"""Client-side assignors, with the results of Java's classes, and their embedded protocol."""
