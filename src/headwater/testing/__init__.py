"""Tests for users: an app on real Spark in a temporary folder, with a clock in the test's hand and a crash switch.

Enter at `run`. Spark starts once per test process; `plugin.py` gives pytest the fixture `run_app` and ends Spark.
"""

from headwater.testing.world import World, run

__all__ = ["World", "run"]
