"""The embedded Schema Registry."""
