"""The routes of the gateway, one module for each family of URLs.

Each module has one class, such as `EventRoutes`. Its methods answer requests; the decorator `Route` (openapi.py)
declares their addresses. Enter at events.py.
"""

__all__: list[str] = []
