"""What the larger commands do; `streampca.cli` and the modules `…_app` give them their names and options."""
