"""The start and the end of a process of any role: signals, threads, log, traces, and access to its port."""
