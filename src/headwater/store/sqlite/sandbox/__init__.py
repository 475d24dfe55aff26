"""SQL of users on the store: one SELECT over views, which cannot write, look elsewhere, or take more than its limits.

Text comes in, rows go out, or a `BadQueryError` that says what was refused. Enter at `Sandbox`.
"""

from headwater.store.sqlite.sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]
