"""What the larger commands do; `streampca.cli` gives them their names and options."""
