"""Who may talk to the ports that the roles listen on: bearer tokens and TLS."""
