"""What each pipeline of the shop should have found, as a batch query over all events that were in time.

Times are microseconds since 1970: `moment` is an event's time, `start` and `end` are those of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BATCH_QUERIES", "BatchQuery"]


@dataclass(frozen=True)
class BatchQuery:
    """A query for DuckDB over tables with the names of the pipeline's inputs.

    `complete_at` names the column that says when a row is complete, for pipelines that wait until then.
    """

    sql: str
    key: tuple[str, ...]
    complete_at: str | None = None


BATCH_QUERIES: Final = {
    "revenue": BatchQuery(
        """
        select moment // 60000000 * 60000000 as start, category, sum(amount) as revenue, count(*) as orders
        from orders where not late group by all
        """,
        ("start", "category"),
    ),
    "unpaid": BatchQuery(
        """
        select order_id, customer_id, category, amount, moment + 30000000 as until
        from orders
        where not late and not exists (
            from payments where not late and payments.order_id = orders.order_id
                            and payments.moment between orders.moment and orders.moment + 30000000)
        """,
        ("order_id",),
        complete_at="until",
    ),
    "visits": BatchQuery(
        """
        with acts as (
            select customer_id, moment, 1 as page, 0 as login from clicks where not late
            union all
            select customer_id, moment, 0 as page, 1 as login from logins where not late),
        begun as (
            select *, moment - lag(moment) over (partition by customer_id order by moment, page) as pause
            from acts),
        numbered as (
            select *, count_if(pause is null or pause >= 10000000) over (
                partition by customer_id order by moment, page
                rows between unbounded preceding and current row) as visit
            from begun)
        select customer_id, min(moment) as start, max(moment) + 10000000 as "end",
               sum(page) as pages, sum(login) as logins
        from numbered group by customer_id, visit
        """,
        ("customer_id", "start"),
        complete_at="end",
    ),
    "search_times": BatchQuery(
        """
        select moment // 60000000 * 60000000 as start, count(*) as searches, sum(millis // hits) as millis_per_hit
        from searches where not late and hits > 0 group by all
        """,
        ("start",),
    ),
    "temperatures": BatchQuery(
        """
        select sensor_id, (moment // 10000000 - back) * 10000000 as start, avg(celsius) as celsius, count(*) as readings
        from sensors, range(3) as hops(back) where not late group by all
        """,
        ("sensor_id", "start"),
    ),
    "too_warm": BatchQuery(
        """
        select sensor_id, count_if(celsius > 5) as times, max(celsius) as highest, count(*) as spans
        from temperatures group by all
        """,
        ("sensor_id",),
    ),
}
"""By pipeline. Sketches are left out: they may differ by a little."""
