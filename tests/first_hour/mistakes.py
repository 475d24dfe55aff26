"""Twenty typical mistakes of the first hour: what is typed, and the answer it must get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["IN_COMMANDS", "IN_PIPELINES", "WRONG_APP", "Mistake", "WrongPipeline"]

APP: Final = """import headwater as hw

app = hw.App("shop")
app.topic("orders", "order_id string, product_id int, cents int, placed_at timestamp", key="order_id", time="placed_at")
app.table("products", "product_id int, name string, price decimal(10,2)", key="product_id")
"""
"""The app in whose folder the commands are typed; it also has the queue `emails`."""


@dataclass(frozen=True)
class Mistake:
    """A wrong command.

    Attributes:
        title: What is wrong.
        words: The words after `headwater`.
        code: The code of the error.
        says: Parts of its answer.
        pastes: Whether its fix is a command that succeeds as printed.
        files: Files that are there before, by name.
    """

    title: str
    words: tuple[str, ...]
    code: str
    says: tuple[str, ...]
    pastes: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


IN_COMMANDS: Final = (
    Mistake("a file that does not exist", ("plan", "ap.py", "--no-spark"), "BAD_APP", ("app.py",), pastes=True),
    Mistake(
        "a syntax error",
        ("plan", "broken.py", "--no-spark"),
        "BAD_APP",
        ("broken.py:2", "def f(:"),
        files={"broken.py": "import headwater\ndef f(:\n"},
    ),
    Mistake(
        "a parameter that is no topic",
        ("plan", "parameter.py", "--no-spark"),
        "UNKNOWN_INPUT",
        ("parameter.py:7", "def large(order):", "fix: orders"),
        files={"parameter.py": APP + "@app.stream\ndef large(order):\n    return order\n"},
    ),
    Mistake(
        "a time column that does not exist",
        ("plan", "time.py", "--no-spark"),
        "TIME_COLUMN_MISSING",
        ("time.py:4", 'fix: time="placed_at"'),
        files={"time.py": APP.replace('time="placed_at"', 'time="at"')},
    ),
    Mistake(
        "a view without a key",
        ("plan", "key.py", "--no-spark"),
        "BAD_PIPELINE",
        ("key.py:6", "key="),
        files={"key.py": APP + "@app.view\ndef all_orders(orders):\n    return orders\n"},
    ),
    Mistake("a wrong topic", ("send", "order", '{"order_id": "a"}'), "UNKNOWN_TOPIC", ("orders",), pastes=True),
    Mistake(
        "a wrong field",
        ("send", "orders", '{"orderid": "a"}'),
        "BAD_EVENT",
        ("orderid", "order_id string"),
        pastes=True,
    ),
    Mistake(
        "a wrong type of a field",
        ("send", "orders", '{"order_id": "a", "cents": "ten"}'),
        "BAD_EVENT",
        ("'cents'", "got str", "nothing was sent"),
    ),
    Mistake(
        "a time without a zone",
        ("send", "orders", '{"order_id": "a", "placed_at": "2026-01-01T12:00:00"}'),
        "BAD_EVENT",
        ("placed_at", "time zone"),
    ),
    Mistake("text that is not JSON", ("send", "orders", "a, 10"), "BAD_JSON", ("line 1 is not JSON",)),
    Mistake("a message without its field", ("send", "emails", '{"two": "a"}'), "BAD_EVENT", ("to string",)),
    Mistake("a wrong view", ("view", "product"), "UNKNOWN_VIEW", ("products",), pastes=True),
    Mistake(
        "a wrong column in SQL",
        ("sql", "select nam, price from products"),
        "BAD_QUERY",
        ("columns of products: product_id, name, price",),
        pastes=True,
    ),
    Mistake("a wrong table in SQL", ("sql", "select name from product"), "BAD_QUERY", ("products",), pastes=True),
    Mistake("a command that does not exist", ("topic",), "BAD_USAGE", ("topics",), pastes=True),
    Mistake("an option that does not exist", ("view", "products", "--lmit=1"), "BAD_USAGE", ("--limit",), pastes=True),
    Mistake(
        "a deletion without a confirmation",
        ("topics", "delete", "orders"),
        "NEEDS_CONFIRMATION",
        ("--dry-run",),
        pastes=True,
    ),
)


@dataclass(frozen=True)
class WrongPipeline:
    """A function that Spark refuses: lines of code after its decorator, and the answer of `headwater plan`.

    Attributes:
        title: What is wrong.
        name: The name of the pipeline.
        code: Its declaration.
        says: Parts of the answer.
        quotes: The line of the code that the answer quotes; empty for one that runs with a warning.
    """

    title: str
    name: str
    code: str
    says: tuple[str, ...]
    quotes: str


IN_PIPELINES: Final = (
    WrongPipeline(
        "countDistinct",
        "customers",
        """@app.view(key="minute")
def customers(orders: DataFrame) -> DataFrame:
    minute = F.window("placed_at", "1 minute").alias("minute")
    return orders.groupBy(minute).agg(F.countDistinct("order_id").alias("n"))
""",
        ("countDistinct", 'F.approx_count_distinct("order_id")'),
        "def customers",
    ),
    WrongPipeline(
        "lag over a window",
        "before",
        """@app.stream
def before(orders: DataFrame) -> DataFrame:
    past = Window.partitionBy("order_id").orderBy("placed_at")
    return orders.withColumn("before", F.lag("cents").over(past))
""",
        ("rows before or after", "hw.stateful"),
        "def before",
    ),
    WrongPipeline(
        "a table taken as DataFrame",
        "named",
        """@app.stream
def named(orders: DataFrame, products: DataFrame) -> DataFrame:
    return orders.join(products, "product_id")
""",
        ("hw.Table", "hw.enrich"),
        "def named",
    ),
    WrongPipeline(
        "a window over a topic without time=",
        "pages",
        """@app.view(key="minute")
def pages(clicks: DataFrame) -> DataFrame:
    minute = F.window("at", "1 minute").alias("minute")
    return clicks.groupBy(minute).agg(F.count("*").alias("n"))
""",
        ("never closes", 'app.topic("clicks", …, time="at")'),
        "",
    ),
    WrongPipeline(
        "a wrong column",
        "large",
        """@app.stream
def large(orders: DataFrame) -> DataFrame:
    return orders.select("order_id", "amount")
""",
        ("amount", "cents"),
        'return orders.select("order_id", "amount")',
    ),
)

WRONG_APP: Final = (
    APP.replace(
        "import headwater as hw\n",
        "from pyspark.sql import DataFrame, Window\nfrom pyspark.sql import functions as F\n\nimport headwater as hw\n",
    )
    + 'app.topic("clicks", "page string, at timestamp")\n\n\n'
    + "\n\n".join(wrong.code for wrong in IN_PIPELINES)
)
"""One app with all wrong pipelines: `headwater plan` answers each of them."""
