"""What the larger commands do; `streampca.cli.app` and the modules `…_app` give them their names and options."""
