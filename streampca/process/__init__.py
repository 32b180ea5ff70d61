"""How a process of any role starts and ends: signals, threads, log, traces, and who may talk to its port."""
