"""Tests of `streampca transform`."""
