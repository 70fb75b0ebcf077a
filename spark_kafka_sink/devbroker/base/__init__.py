"""What all rooms of the broker speak of: settings, refusals, timers, names of topics."""
