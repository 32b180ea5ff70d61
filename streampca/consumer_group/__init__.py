"""The members of a consumer group: what workers and `streampca transform` share."""
