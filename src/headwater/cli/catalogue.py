"""The commands by name, with their summaries for `headwater --help`; imports nothing else."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["COMMANDS", "GROUPS", "Command", "overview"]


class Command(NamedTuple):
    """A command: its name, its group in the overview, the file of its function, and a summary of one line."""

    name: str
    group: str
    file: str
    summary: str

    @property
    def module(self) -> str:
        """The module of the command's function."""
        return f"headwater.cli.commands.{self.file}"

    @property
    def function(self) -> str:
        """The function of the command in the module. It has the command's name, except `help`, a builtin of Python."""
        return "explain" if self.name == "help" else self.name


GROUPS: Final = ("start", "look", "act", "check", "other")
COMMANDS: Final = {
    command.name: command
    for command in (
        Command("init", "start", "dev", "Make a new app in a folder of its own, with a test that passes."),
        Command("dev", "start", "dev", "Run an app while you write it: it reloads whenever you save a file."),
        Command("demo", "start", "demo", "Run a demo shop with live events and pipelines on Spark."),
        Command("run", "start", "run", "Run an app: its node, pipelines, workers and captures."),
        Command("status", "start", "status", "Show whether a node is running, and what the log holds."),
        Command("topics", "look", "topics", "List the topics; describe or delete one."),
        Command("groups", "look", "groups", "List the consumer groups, or delete one."),
        Command("tail", "look", "read", "Follow a topic and print events as they arrive."),
        Command("cat", "look", "read", "Print a range of events of a topic."),
        Command("view", "look", "views", "Print the rows of a view or table, or list the views."),
        Command("changes", "look", "views", "Follow the changes of a view."),
        Command("sql", "look", "views", "Run a SELECT over views and tables."),
        Command("lag", "look", "groups", "Show how far pipelines and consumer groups are behind."),
        Command("late", "look", "pipelines", "Print late or quarantined events, or send them to a topic."),
        Command("queues", "look", "queues", "Show the counts of queues, or the dead letters of a queue."),
        Command("send", "act", "send", "Send JSON events to a topic, or publish JSON messages to a queue."),
        Command("complete", "act", "send", "Say that the history of a topic is complete."),
        Command("redrive", "act", "queues", "Send dead letters back to their queue."),
        Command("retry", "act", "pipelines", "Retry the quarantined events of a pipeline."),
        Command("reset", "act", "groups", "Set the committed offsets of a consumer group."),
        Command("backfill", "act", "pipelines", "Rebuild a view from the log, then switch to it."),
        Command(
            "capture", "act", "capture", "Capture databases: check one, run captures, show them, load tables again."
        ),
        Command("plan", "check", "app", "Show what an app would do, and the errors in it."),
        Command("replay", "check", "pipelines", "Run committed batches again and compare the rows by hash."),
        Command("verify", "check", "storage", "Read the whole log and verify every checksum."),
        Command("doctor", "check", "doctor", "Check the machine and the data folder."),
        Command("bench", "check", "storage", "Measure the disk and a log on it."),
        Command("services", "other", "services", "Start, show or stop a local Kafka, PostgreSQL and RabbitMQ."),
        Command("cluster", "other", "services", "Start, show or stop a local Spark cluster."),
        Command("prepare", "other", "app", "Make Spark start faster, once per environment."),
        Command("help", "other", "explain", "Explain an error code or a command."),
    )
}


def overview() -> str:
    """Returns the text of `headwater --help`."""
    lines = ["Usage: headwater COMMAND [OPTIONS]       (hw is short for headwater)"]
    for group in GROUPS:
        lines += ["", group]
        lines += [f"  {command.name:8} {command.summary}" for command in COMMANDS.values() if command.group == group]
    return "\n".join(
        [
            *lines,
            "",
            "Every command takes --data (a folder or a node's http:// URL), --profile, --json, --plain and --trace.",
            "headwater COMMAND --help describes a command.",
        ]
    )
