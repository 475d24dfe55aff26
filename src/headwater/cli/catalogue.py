"""The commands by name, with the line that `headwater --help` shows; imports nothing else."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["COMMANDS", "GROUPS", "Command", "overview"]


class Command(NamedTuple):
    """A command: where its function is, and what it does in one line."""

    name: str
    group: str
    module: str
    summary: str

    @property
    def function(self) -> str:
        """The function of the command in the module. It has the command's name, except `help`, a builtin of Python."""
        return "explain" if self.name == "help" else self.name


_PACKAGE = "headwater.cli.commands"
GROUPS: Final = ("start", "look", "act", "check", "other")
COMMANDS: Final = {
    command.name: command
    for command in (
        Command(
            "demo",
            "start",
            f"{_PACKAGE}.demo",
            "Run a small shop, with live events and pipelines on Spark, for a first look.",
        ),
        Command(
            "run",
            "start",
            f"{_PACKAGE}.app",
            "Run an app: the node with its topics, its pipelines on Spark, and the workers of its queues.",
        ),
        Command("status", "start", f"{_PACKAGE}.status", "Show whether a node runs, and what the log holds."),
        Command("topics", "look", f"{_PACKAGE}.topics", "List the topics, or describe one."),
        Command("tail", "look", f"{_PACKAGE}.read", "Follow a topic and print each event as it comes."),
        Command("cat", "look", f"{_PACKAGE}.read", "Print a range of a topic, then stop."),
        Command("view", "look", f"{_PACKAGE}.views", "Print the rows of a view, or list the views."),
        Command("changes", "look", f"{_PACKAGE}.views", "Follow the changes of a view."),
        Command("sql", "look", f"{_PACKAGE}.views", "Ask a SELECT over views."),
        Command("lag", "look", f"{_PACKAGE}.groups", "Show how far pipelines and consumer groups are behind."),
        Command(
            "late",
            "look",
            f"{_PACKAGE}.pipelines",
            "Print events that came late, or that could not be used, or send them again.",
        ),
        Command(
            "queues",
            "look",
            f"{_PACKAGE}.queues",
            "Show how queues stand: counts per queue and group, or the dead letters of one.",
        ),
        Command("send", "act", f"{_PACKAGE}.send", "Send events, given as JSON, to a topic."),
        Command(
            "redrive",
            "act",
            f"{_PACKAGE}.queues",
            "Send the dead letters of a queue back to it, for another round of attempts.",
        ),
        Command("reset", "act", f"{_PACKAGE}.groups", "Set the committed offsets of a consumer group."),
        Command(
            "backfill",
            "act",
            f"{_PACKAGE}.pipelines",
            "Make a view anew from the log, beside the present one, then let it take its place.",
        ),
        Command("plan", "check", f"{_PACKAGE}.app", "Show what an app would do, and what is wrong with it."),
        Command(
            "replay",
            "check",
            f"{_PACKAGE}.pipelines",
            "Run what pipelines have committed once more, apart from everything, and compare the rows by hash.",
        ),
        Command("verify", "check", f"{_PACKAGE}.storage", "Read every byte of the log and compare every checksum."),
        Command("doctor", "check", f"{_PACKAGE}.doctor", "Check the machine and the data folder."),
        Command("bench", "check", f"{_PACKAGE}.storage", "Measure this disk and a log on it."),
        Command(
            "services",
            "other",
            f"{_PACKAGE}.services",
            "Start a local Kafka, PostgreSQL and RabbitMQ for trying a profile, look at them, or end them.",
        ),
        Command(
            "cluster",
            "other",
            f"{_PACKAGE}.services",
            "Start a local Spark cluster for trying a profile, look at it, or end it.",
        ),
        Command("prepare", "other", f"{_PACKAGE}.app", "Let Spark start faster from now on."),
        Command("help", "other", f"{_PACKAGE}.explain", "Explain an error code, or a command."),
    )
}


def overview() -> str:
    """Returns what `headwater --help` prints."""
    lines = ["Usage: headwater COMMAND [OPTIONS]       (hw is short for headwater)"]
    for group in GROUPS:
        lines += ["", group]
        lines += [f"  {command.name:8} {command.summary}" for command in COMMANDS.values() if command.group == group]
    return "\n".join(
        [
            *lines,
            "",
            "Every command takes --data (a folder or a node's http:// URL), --profile, --json, --plain and --trace.",
            "headwater COMMAND --help says more.",
        ]
    )
