"""The commands by name, with the line that `headwater --help` shows; importing this imports nothing else."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["GROUPS", "VERBS", "Verb", "overview"]


class Verb(NamedTuple):
    """A command: where its function is, and what it does in one line."""

    name: str
    group: str
    module: str
    summary: str

    @property
    def function(self) -> str:
        """The function in the module, named as the module is."""
        return self.module.rpartition(".")[2]


_ROOM = "headwater.cli.commands"
GROUPS: Final = ("start", "look", "act", "check", "other")
VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb(
            "demo",
            "start",
            f"{_ROOM}.demo",
            "Run a small shop, with live events and pipelines on Spark, for a first look.",
        ),
        Verb(
            "run",
            "start",
            f"{_ROOM}.run",
            "Run an app: the node with its topics, its pipelines on Spark, and the workers of its queues.",
        ),
        Verb(
            "status",
            "start",
            f"{_ROOM}.status",
            "Show whether a node runs, and what the log holds.",
        ),
        Verb("topics", "look", f"{_ROOM}.topics", "List the topics, or describe one."),
        Verb("tail", "look", f"{_ROOM}.tail", "Follow a topic and print each event as it comes."),
        Verb("cat", "look", f"{_ROOM}.cat", "Print a range of a topic, then stop."),
        Verb("view", "look", f"{_ROOM}.view", "Print the rows of a view, or list the views."),
        Verb("changes", "look", f"{_ROOM}.changes", "Follow the changes of a view."),
        Verb("sql", "look", f"{_ROOM}.sql", "Ask a SELECT over views."),
        Verb("lag", "look", f"{_ROOM}.lag", "Show how far pipelines and consumer groups are behind."),
        Verb(
            "late",
            "look",
            f"{_ROOM}.late",
            "Print events that came late, or that could not be used, or send them again.",
        ),
        Verb(
            "queues",
            "look",
            f"{_ROOM}.queues",
            "Show how queues stand: counts per queue and group, or the dead letters of one.",
        ),
        Verb("send", "act", f"{_ROOM}.send", "Send events, given as JSON, to a topic."),
        Verb(
            "retry",
            "act",
            f"{_ROOM}.retry",
            "Put dead letters of a queue back in line, for another round of attempts.",
        ),
        Verb("reset", "act", f"{_ROOM}.reset", "Set where a consumer group goes on."),
        Verb(
            "backfill",
            "act",
            f"{_ROOM}.backfill",
            "Make a view anew from the log, beside the present one, then let it take its place.",
        ),
        Verb("plan", "check", f"{_ROOM}.plan", "Show what an app would do, and what is wrong with it."),
        Verb(
            "replay",
            "check",
            f"{_ROOM}.replay",
            "Run what pipelines have committed once more, apart from everything, and compare the rows by hash.",
        ),
        Verb("verify", "check", f"{_ROOM}.verify", "Read every byte of the log and compare every checksum."),
        Verb(
            "doctor",
            "check",
            f"{_ROOM}.doctor",
            "Check the machine and the data folder.",
        ),
        Verb("bench", "check", f"{_ROOM}.bench", "Measure this disk and a log on it."),
        Verb(
            "services",
            "other",
            f"{_ROOM}.services",
            "Start a local Kafka, PostgreSQL and RabbitMQ for trying a profile, look at them, or end them.",
        ),
        Verb(
            "cluster",
            "other",
            f"{_ROOM}.cluster",
            "Start a local Spark cluster for trying a profile, look at it, or end it.",
        ),
        Verb("prepare", "other", f"{_ROOM}.prepare", "Let Spark start faster from now on."),
        Verb("help", "other", f"{_ROOM}.explain", "Explain an error code, or a command."),
    )
}


def overview() -> str:
    """What `headwater --help` prints."""
    lines = ["Usage: headwater VERB [OPTIONS]          (hw is short for headwater)"]
    for group in GROUPS:
        lines += ["", group]
        lines += [f"  {verb.name:8} {verb.summary}" for verb in VERBS.values() if verb.group == group]
    return "\n".join(
        [
            *lines,
            "",
            "Every verb takes --data (a folder, or a node's http:// address), --profile, --json, --plain and --trace.",
            "headwater VERB --help says more.",
        ]
    )
