"""Asks the fork server for a Python process; stands in for `python` in the commands of Spark's Java process.

`python -I -S fork_client.py SOCKET PYTHON ARGUMENT…` passes its arguments, environment and standard streams on, and
lives as long as the forked process. If no server answers, it becomes an ordinary Python process. It imports as little
as possible, because it starts for each process that Spark wants.
"""

import json
import os
import socket
import sys


def main(path: str, python: str, *arguments: str) -> int:
    """Run a Python process; returns its exit code."""
    if arguments[:1] != ("-m",):  # Spark asks for the version of Python
        os.execv(python, [python, *arguments])
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(path)
        request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(request)
    except OSError:
        os.execv(python, [python, *arguments])
    status = server.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
