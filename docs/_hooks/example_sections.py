"""Lets the documentation show `Example:` sections as code.

The parser of docstrings knows the section `Examples:` only, and takes one example for running text.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ONE_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class ExampleSections(griffe.Extension):
    """Renames the section before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe calls this for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = ONE_EXAMPLE.sub("Examples:", obj.docstring.value)
