"""Values shared by all rooms of the broker: settings, refusals, timers, topic names."""
