"""The command line: `app` and `operations` have the names and options of commands, the other modules do the work."""
