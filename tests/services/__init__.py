"""Real servers for tests and benchmarks, on loopback and in temporary folders.

`system_packages.py` installs the programs of a server, and one module per server starts it, as `headwater.services`
does for users.
"""
