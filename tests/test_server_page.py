"""The curl commands of docs/server.md give the answers that the page shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import headwater as hw
from headwater.server import Node

PAGE = (Path(__file__).parent.parent / "docs" / "server.md").read_text()
# A command goes on over the indented lines below it; what is not indented is its output.
COMMAND = re.compile(
    r"^```console\n\$ (?P<command>curl .*\n(?: {4}.*\n)*)(?P<shown>(?:(?!```).*\n)*)```$", re.MULTILINE
)
TYPE = "order_id string, customer_id int, amount decimal(12,2), placed_at timestamp"


def test_the_curl_commands_answer_as_shown(tmp_path, require_program):
    require_program("curl")
    with Node(tmp_path, port=0) as node, hw.connect(node.url) as client:
        client.create_topic("orders", TYPE, key="customer_id", time="placed_at", partitions=3)
        found = list(COMMAND.finditer(PAGE))
        assert found
        for step in found:
            command = step["command"].replace("http://127.0.0.1:8642", node.url)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            assert done.stdout.rstrip("\n") == step["shown"].rstrip("\n"), command
