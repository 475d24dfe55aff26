"""The routes of the gateway, one module for each family of URLs.

Each module has a function `routes` that takes the gateway and returns the family's routes. Enter at
events.py.
"""

__all__: list[str] = []
