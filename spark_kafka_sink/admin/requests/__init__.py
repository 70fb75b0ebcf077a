"""The requests of both admin clients, and what responses mean: a module for each subject."""
