"""`streampca transform`: projects the records of a topic into another topic, exactly once."""
