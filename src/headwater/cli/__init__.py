"""The command line: one file per command, loaded when it is called.

Text comes in, data goes to stdout, messages go to stderr, and an exit code says how it went. Enter at `main` in
`entry.py`; `catalogue.py` lists the commands, `output.py` decides how a result is shown.
"""

from headwater.cli.entry import main

__all__ = ["main"]
