"""Test support for users: an app on real Spark in a temporary folder, with a test clock and failpoints.

Enter at `run`. Spark starts once per test process; plugin.py gives pytest the fixture `run_app` and stops
Spark. Imports are lazy, because pytest loads the plugin for every run of every project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.testing.world import World, run

__all__ = ["World", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from headwater.testing import world

    return getattr(world, name)
