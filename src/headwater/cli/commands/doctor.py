"""`headwater doctor`: what could be wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

from headwater.cli.checks import Check, State, machine_checks, server_checks
from headwater.cli.node import node_of
from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Column, Output
from headwater.cli.words import plural
from headwater.config import PORT

__all__ = ["doctor"]

_MARKS = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}


def doctor(*, port: int | None = None, options: Options = DEFAULTS) -> int:
    """Check the machine and the data folder.

    With a profile, it is also asked whether the servers that it names answer. Each finding that is not well comes with
    what to do. The exit code is 1 when something will not work.

    Args:
        port: The port that should be free, or our own node's [default: HEADWATER_PORT, else 8642].
        options: Options of every command.
    """
    output = Output(options)
    folder = new_folder(options)
    checks = [_port_is_ours(check, options) for check in machine_checks(folder, PORT.number(port))]
    if (folder / "log.json").exists():
        from headwater.cli.log_checks import log_checks

        checks += log_checks(folder)
    checks += server_checks(options.settled)
    _show(output, checks)
    return 1 if any(check.state is State.FAIL for check in checks) else 0


def _port_is_ours(check: Check, options: Options) -> Check:
    """A port that our own node listens on is not taken by another."""
    if check.name != "port" or check.state is State.OK:
        return check
    node = node_of(new_folder(options))
    if node.running is None or node.health is None:
        return check
    return Check("port", State.OK, f"our own node listens at {node.running.url}")


def _show(output: Output, checks: list[Check]) -> None:
    if output.terminal:
        for check in checks:
            state = output.style(f"{check.state.value:5}", _MARKS[check.state])
            output.text(f"{state} {check.name:12} {check.detail}")
            if check.fix:
                output.text(f"{'':18} fix: {check.fix}")
    else:
        columns = [Column(name.upper(), name) for name in ("name", "state", "detail", "fix")]
        output.rows(columns, map(asdict, checks))
    words = {State.FAIL: "fault", State.WARN: "warning"}
    found = {state: sum(check.state is state for check in checks) for state in words}
    output.note(
        ", ".join(plural(found[state], words[state]) for state in words if found[state]) or "all is well"
    )
