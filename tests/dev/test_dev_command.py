"""`headwater dev` without Spark: what it refuses, its port, and an app that cannot be loaded at first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli import main
from headwater.cli.commands import dev as command
from headwater.config import PORT, Setting
from headwater.errors import PortTakenError

COMMAND = Path(sys.executable).with_name("headwater")
APP = 'import headwater as hw\n\napp = hw.App("shop")\napp.topic("orders", "order_id int")\n'


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_folder_without_an_app_leads_to_init(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert main(["dev", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["fix"].endswith("init shop")
    (tmp_path / "shop.py").write_text(APP)
    assert main(["dev", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["fix"].endswith("dev shop.py")
    assert list(tmp_path.iterdir()) == [tmp_path / "shop.py"]


def test_a_log_on_kafka_leads_to_run(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "headwater.toml").write_text('[profiles.far]\nlog = "kafka://broker:9092"\n')
    assert main(["dev", "--profile", "far", "--json"]) == 2
    assert "run app.py --profile far" in json.loads(capsys.readouterr().err)["fix"]


def test_a_taken_port_is_replaced_only_if_nobody_asked_for_it(tmp_path: Path, monkeypatch, taken: int):
    monkeypatch.delenv(PORT.variable, raising=False)
    monkeypatch.setattr(command, "PORT", Setting("port", str(taken), ""))
    with contextlib.closing(command._open_node(tmp_path, None, None)._socket) as listening:
        assert listening.getsockname()[1] != taken
    with pytest.raises(PortTakenError):
        command._open_node(tmp_path / "other", taken, None)
    monkeypatch.setenv(PORT.variable, str(taken))
    with pytest.raises(PortTakenError):
        command._open_node(tmp_path / "third", None, None)


class Running:
    """`headwater dev --json` in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            [COMMAND, "dev", "--port", "0", "--json"], cwd=folder, env=environment, text=True, **pipes
        )

    def event(self) -> dict[str, Any]:
        """Returns the next message."""
        assert self.process.stderr is not None
        found: dict[str, Any] = json.loads(self.process.stderr.readline())
        return found


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of the process."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}


def test_an_app_that_cannot_be_loaded_is_waited_for_and_edits_create_topics(tmp_path: Path, environment):
    file = tmp_path / "app.py"
    file.write_text(APP.replace("hw.App(", "hw.App(("))
    running = Running(tmp_path, environment)
    with running.process as process:
        try:
            assert running.event()["problem"]["code"] == "BAD_APP"
            file.write_text(APP)
            assert process.stdout is not None
            banner = json.loads(process.stdout.readline())
            assert (banner["app"], banner["topics"]) == ("shop", 1)
            file.write_text(APP + 'app.topic("logins", "id int")\n')
            assert running.event()["event"] == "reloaded"
            with hw.connect(tmp_path / ".headwater") as client:
                assert client.topics() == ["logins", "orders"]
            file.write_text(APP + 'app.topic("orders", "id int")\n')
            assert running.event()["event"] == "error"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        except BaseException:
            process.kill()
            raise
