"""The addresses of the gateway, one file for each family.

Each has a function `routes` that takes the gateway and gives the family's routes. Enter at `events.py`.
"""

__all__: list[str] = []
