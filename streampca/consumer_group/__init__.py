"""What workers and `streampca transform` share as members of a consumer group."""
