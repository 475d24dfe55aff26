"""CPU per event to and from Kafka by value format (JSON, Avro, Arrow), and the size of a value.

    python -m benchmarks.bench_forms [--quick]

`send_many` sends the same orders from an Arrow batch, and they are read as Arrow batches. CPU is that of this process,
including the threads of the driver, without the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import Case, Measured, Watch, measure
from benchmarks.orders import SCHEMA, arrow_orders
from benchmarks.table import Row, print_table
from headwater.client import Client, connect
from headwater.events import Codec
from headwater.log.kafka.serializers import create_serializer
from headwater.log.topic import ValueFormat
from tests.services.kafka import kafka_broker

__all__ = ["figures", "main"]


def _sending(client: Client, topic: str, count: int) -> Case:
    def work(watch: Watch) -> None:
        with watch.lap(count):
            client.send_many(topic, arrow_orders(count))

    return work


def _reading(client: Client, topic: str, count: int) -> Case:
    def work(watch: Watch) -> None:
        with watch.lap(count):
            assert sum(batch.num_rows for batch in client.read_arrow(topic, stop=count)) == count

    return work


def figures(options: Options) -> list[Row]:
    """Returns, for each format, CPU to send, CPU to read, and size."""
    count = options.size(full=50_000, quick=200)
    with kafka_broker(options.folder / "kafka") as address, connect(f"kafka://{address}") as client:
        for form in ValueFormat:
            client.create_topic(form.value, SCHEMA, value_format=form.value)
        kinds = {"send": _sending, "read": _reading}
        measured = {
            (kind, form): found
            for kind, case in kinds.items()
            for form, found in zip(
                ValueFormat,
                measure(
                    {f"{kind}, {form.value}": case(client, form.value, count) for form in ValueFormat},
                    repeats=options.repeats,
                ).values(),
                strict=True,
            )
        }
    rows = [_row(kind, form, found, measured[kind, ValueFormat.JSON]) for (kind, form), found in measured.items()]
    return rows + [_size(form) for form in ValueFormat]


def _row(kind: str, form: ValueFormat, found: Measured, json: Measured) -> Row:
    ratio = found.cpu_per_event / json.cpu_per_event
    micros = found.cpu_per_event * 1e6
    return Row(f"CPU per event, {kind}, {form.value}", micros, "µs", found.wall, found.cpu, "json", ratio)


def _size(form: ValueFormat) -> Row:
    values = create_serializer(form, Codec(SCHEMA), "orders").encode(arrow_orders(100))
    return Row(f"bytes of a value, {form.value}", sum(map(len, values)) / len(values), "bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    with bench_options("forms of values on Kafka", arguments) as options:
        title = "CPU per event by value format"
        print_table(title, this_machine(options.folder), figures(options), as_json=options.json)


if __name__ == "__main__":
    main()
