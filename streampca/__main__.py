"""`python -m streampca` is the command line."""

from streampca.cli.app import main

if __name__ == "__main__":
    main()
