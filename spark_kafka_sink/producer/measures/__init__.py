"""The metrics of a producer, by the names that a Java producer has for them."""
