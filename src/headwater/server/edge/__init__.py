"""What stands before every route: the connection, who may ask, how much, and how errors are told.

In come bytes from anybody, out come requests that may be answered, or a problem. Enter at `guard.py`.
"""

__all__: list[str] = []
