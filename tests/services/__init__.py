"""Real servers for tests and benchmarks: on loopback, in a folder of the run, ended by their process id.

`system_packages.py` gets what a server needs from the system, and one file per server starts it (`kafka.py`), as
`headwater.services` does it for users.
"""
