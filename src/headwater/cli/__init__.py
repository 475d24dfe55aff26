"""The command line: one module per family of commands, imported when a command is called.

Arguments come in, data goes to stdout, messages go to stderr, and the exit code reports success. Enter at
`main` in entry.py; catalogue.py lists the commands, output.py decides how a result is shown.
"""

from headwater.cli.entry import main

__all__ = ["main"]
