"""`headwater doctor`: what could be wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

from headwater.cli.checks import Check, State, machine_checks
from headwater.cli.node import PORT, node_of
from headwater.cli.options import Options, new_folder
from headwater.cli.output import Column, Output
from headwater.cli.words import plural

__all__ = ["doctor"]

_MARKS = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}


def doctor(*, port: int = PORT, options: Options = Options()) -> int:
    """Check the machine and the data folder, and say how to fix what is wrong.

    The exit code is 1 when something will not work.

    Args:
        port: The port that should be free, or our own node's.
        options: Options of every command.
    """
    output = Output(options)
    folder = new_folder(options)
    checks = [_port_is_ours(check, options) for check in machine_checks(folder, port)]
    if (folder / "log.json").exists():
        from headwater.cli.log_checks import log_checks

        checks += log_checks(folder)
    _show(output, checks)
    return 1 if any(check.state is State.FAIL for check in checks) else 0


def _port_is_ours(check: Check, options: Options) -> Check:
    """A port that our own node listens on is not taken by another."""
    node = node_of(new_folder(options)) if check.name == "port" and check.state is State.WARN else None
    if node is None or not node.answers():
        return check
    return Check("port", State.OK, f"our own node listens at {node.url}")


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
    bad = {state: sum(check.state is state for check in checks) for state in (State.FAIL, State.WARN)}
    verdict = ", ".join(plural(number, {"fail": "fault", "warn": "warning"}[state]) for state, number in bad.items() if number)
    output.note(verdict or "all is well")
