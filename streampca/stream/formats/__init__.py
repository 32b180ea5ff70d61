"""How values hold vectors: one module a format, each with a class that is a `formats.base.Reader`."""
