"""The version of this release; the build reads it here."""

__version__ = "0.1.0"
