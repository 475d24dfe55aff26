"""What every client promises about views, wherever they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from tests.client.shop import fresh
from tests.kept_views import NOON, REVENUE, TOTALS, Keeper, aside, minute, replace


def total(category: str | None, n: int, amount: str = "0") -> dict:
    return {"category": category, "n": n, "sum": Decimal(amount).quantize(Decimal("0.01"))}


def sales(number: int, category: str, amount: str) -> dict:
    return {"minute": minute(number), "category": category, "amount": Decimal(amount)}


class ViewingContract:
    """Inherited by the suites of both clients, which say `folder` and `client`."""

    @pytest.fixture
    def totals(self, folder: Path, client: hw.Client) -> Iterator[Keeper]:
        """A view of three rows, behind a topic of five events."""
        topic = fresh()
        client.create_topic(topic, "order_id string")
        client.send_many(topic, [{"order_id": f"o-{n}"} for n in range(5)])
        keeper = Keeper(folder, replace(TOTALS, name=fresh("totals")), topic)
        keeper.commit([total("pens", 2, "3.00"), total("ink", 1, "7.50"), total("paper", 1)], events=5)
        yield keeper
        keeper.close()

    @pytest.fixture
    def revenue(self, folder: Path, client: hw.Client) -> Iterator[Keeper]:
        """A view of three windows, of which the first is closed."""
        keeper = Keeper(folder, replace(REVENUE, name=fresh("revenue")), fresh())
        rows = [sales(0, "pens", "1.50"), sales(1, "pens", "2.50"), sales(2, "ink", "9.99")]
        keeper.commit(rows, events=3, watermark=NOON + timedelta(minutes=1, seconds=30))
        yield keeper
        keeper.close()

    # -- rows ----------------------------------------------------------------------------------------------------

    def test_rows_come_in_the_order_of_the_key_with_python_values(self, client: hw.Client, totals: Keeper):
        rows = client.view(totals.table.name).rows()
        assert rows == [total("ink", 1, "7.50"), total("paper", 1), total("pens", 2, "3.00")]

    def test_a_window_is_a_start_and_an_end(self, client: hw.Client, revenue: Keeper):
        rows = client.view(revenue.table.name).rows()
        assert [row["minute"] for row in rows] == [minute(0), minute(1), minute(2)]
        assert list(rows[0]) == ["minute", "category", "amount"]

    def test_conditions_orders_and_limits_are_kept(self, client: hw.Client, totals: Keeper):
        view = client.view(totals.table.name)
        assert [row["category"] for row in view.rows(where="n = 1 and sum > 5")] == ["ink"]
        assert [row["category"] for row in view.rows(order=["-n", "category"], limit=2)] == ["pens", "ink"]
        assert [row["category"] for row in view.rows(limit=1)] == ["ink"]
        assert view.rows(limit=0) == []

    def test_one_row_is_read_by_its_key(self, client: hw.Client, totals: Keeper, revenue: Keeper):
        view = client.view(totals.table.name)
        assert view.get("ink") == total("ink", 1, "7.50")
        assert view.get(("ink",)) == view.get({"category": "ink"}) == view.get("ink")
        assert view.get("chalk") is None
        windows = client.view(revenue.table.name)
        assert windows.get((minute(2), "ink")) == sales(2, "ink", "9.99")
        assert windows.get({"minute": minute(1), "category": "ink"}) is None

    def test_a_key_may_be_null_or_look_like_json(self, client: hw.Client, totals: Keeper):
        odd = ['{"category":"ink"}', "", "ä/b,c", "null"]
        totals.commit([total(None, 7), *(total(text, 8) for text in odd)])
        view = client.view(totals.table.name)
        assert view.get({"category": None}) == total(None, 7)
        assert [view.get(text) for text in odd] == [total(text, 8) for text in odd]

    def test_a_key_that_does_not_fit_is_refused(self, client: hw.Client, revenue: Keeper, totals: Keeper):
        with pytest.raises(errors.BadKeyError) as caught:
            client.view(revenue.table.name).get("ink")
        assert caught.value.data == {"view": revenue.table.name}
        for key in (7, ("ink", "pens"), {"name": "ink"}):
            with pytest.raises(errors.BadKeyError):
                client.view(totals.table.name).get(key)

    def test_columns_are_read_as_arrow(self, client: hw.Client, revenue: Keeper):
        table = client.view(revenue.table.name).table(where="category = 'ink'")
        assert table.schema.equals(revenue.table.schema)
        assert table.num_rows == 1

    def test_a_view_without_rows_is_an_empty_list(self, client: hw.Client, folder: Path):
        keeper = Keeper(folder, replace(TOTALS, name=fresh("empty")))
        assert client.view(keeper.table.name).rows() == []
        assert client.view(keeper.table.name).table().schema.equals(TOTALS.schema)
        assert list(client.view(keeper.table.name).changes()) == []
        keeper.close()

    def test_an_unknown_view_names_near_ones(self, client: hw.Client, totals: Keeper):
        name = totals.table.name
        with pytest.raises(errors.UnknownViewError) as caught:
            client.view(name[:-1]).rows()
        assert name in caught.value.data["near"]

    def test_a_wrong_condition_is_refused(self, client: hw.Client, totals: Keeper):
        view = client.view(totals.table.name)
        for where in ("price > 1", "1=1) or (1=1", "n = 1; drop table x", "n in (select value from hw$views)"):
            with pytest.raises(errors.BadFilterError):
                view.rows(where=where)
        with pytest.raises(errors.UsageError):
            view.rows(where="n = 1", key="ink")

    def test_views_are_listed(self, client: hw.Client, totals: Keeper, revenue: Keeper):
        assert {totals.table.name, revenue.table.name} <= set(client.views())
        infos = {info.name: info for info in client.view_source.views()}
        assert infos[totals.table.name].rows == 3
        assert infos[revenue.table.name].window == "minute"
        assert infos[revenue.table.name].schema.equals(REVENUE.schema)
        assert infos["hw_pipelines"].kind == "system"

    # -- open windows --------------------------------------------------------------------------------------------

    def test_open_and_closed_windows_are_told_apart(self, client: hw.Client, revenue: Keeper):
        view = client.view(revenue.table.name)
        assert [row["minute"] for row in view.open_windows()] == [minute(1), minute(2)]
        assert [row["minute"] for row in view.rows(open=False)] == [minute(0)]
        assert [row["minute"] for row in view.rows(open=True, limit=1)] == [minute(1)]
        revenue.commit([], watermark=NOON + timedelta(minutes=3))
        assert view.open_windows() == []
        assert len(view.rows(open=False)) == 3

    def test_a_view_without_windows_has_no_open_rows(self, client: hw.Client, totals: Keeper):
        with pytest.raises(errors.BadQueryError):
            client.view(totals.table.name).open_windows()

    # -- after ---------------------------------------------------------------------------------------------------

    def test_a_read_waits_for_its_own_event(self, client: hw.Client, totals: Keeper):
        receipt = client.send(totals.topic, {"order_id": "mine"})
        later = threading.Timer(0.3, totals.commit, ([total("mine", 1)],))
        later.start()
        view, begun = client.view(totals.table.name), time.monotonic()
        assert view.get("mine", after=receipt, timeout="20 seconds") == total("mine", 1)
        assert 0.25 < time.monotonic() - begun < 5
        later.join()
        receipts = client.send_many(totals.topic, [{"order_id": "x"}, {"order_id": "y"}])
        totals.commit([total("mine", 3)], events=2)
        assert view.get("mine", after=receipts, timeout=0) == total("mine", 3)

    def test_a_read_that_waits_in_vain_says_how_far_the_view_is(self, client: hw.Client, totals: Keeper):
        receipt = client.send(totals.topic, {"order_id": "mine"})
        totals.tell("failed", detail="division by zero")
        with pytest.raises(errors.ViewBehindError) as caught:
            client.view(totals.table.name).rows(after=receipt, timeout=0.1)
        assert caught.value.data["after"] == f"{totals.topic}/0/5"
        assert caught.value.data["position"] == f"{totals.topic}@0:5"
        assert caught.value.data["state"] == "failed"
        assert "division by zero" in str(caught.value.detail)
        assert "0.1 s" in caught.value.what

    def test_a_receipt_of_a_topic_that_the_view_does_not_read_is_refused(self, client: hw.Client, totals: Keeper):
        other = fresh("clicks")
        client.create_topic(other, "page string")
        receipt = client.send(other, {"page": "/"})
        with pytest.raises(errors.UnknownTopicError) as caught:
            client.view(totals.table.name).rows(after=receipt, timeout=5)
        assert caught.value.data == {"topic": other, "view": totals.table.name}

    def test_an_event_is_followed_through_a_chain_of_views(self, client: hw.Client, folder: Path, totals: Keeper):
        behind = Keeper(folder, replace(TOTALS, name=fresh("behind")), totals.changes.name)
        behind.commit([], events=3)
        receipt = client.send(totals.topic, {"order_id": "mine"})
        view = client.view(behind.table.name)
        totals.commit([total("mine", 1)])
        with pytest.raises(errors.ViewBehindError):
            view.rows(after=receipt, timeout=0.05)
        behind.commit([total("mine", 9)])
        assert view.get("mine", after=receipt, timeout=5) == total("mine", 9)
        behind.close()

    def test_a_dropped_event_is_not_waited_for(self, client: hw.Client, totals: Keeper):
        with pytest.raises(errors.UsageError):
            client.view(totals.table.name).rows(after=hw.Receipt(totals.topic, -1, -1, dropped="full"))

    # -- the past ------------------------------------------------------------------------------------------------

    @pytest.fixture
    def past(self, folder: Path) -> Iterator[tuple[Keeper, hw.ManualClock]]:
        """A view with three commits, one each minute from noon on."""
        clock = hw.ManualClock(NOON)
        keeper = Keeper(folder, replace(TOTALS, name=fresh("past")), fresh(), clock)
        for rows in ([total("pens", 1), total("ink", 1)], [total("pens", 2)]):
            keeper.commit(rows)
            clock.advance("1 minute")
        keeper.commit([total("paper", 1)], deletes=[{"category": "ink"}])
        yield keeper, clock
        keeper.close()

    def test_a_view_is_read_as_it_was(self, client: hw.Client, past: tuple[Keeper, hw.ManualClock]):
        view = client.view(past[0].table.name)

        def then(seconds: int, **options):
            rows = view.rows(as_of=NOON + timedelta(seconds=seconds), **options)
            return {row["category"]: row["n"] for row in rows}

        assert then(-1) == {}
        assert then(0) == {"ink": 1, "pens": 1}
        assert then(59) == {"ink": 1, "pens": 1}
        assert then(60) == {"ink": 1, "pens": 2}
        assert then(120) == {"paper": 1, "pens": 2}
        assert then(60, where="n > 1") == {"pens": 2}
        assert then(60, key="ink") == {"ink": 1}
        assert list(then(60, order=["-n"])) == ["pens", "ink"]
        assert view.rows(as_of="2026-01-01T12:01:00Z", limit=1) == [total("ink", 1)]

    def test_a_time_that_cannot_be_read_is_refused(self, client: hw.Client, totals: Keeper):
        with pytest.raises(errors.BadTimeError):
            client.view(totals.table.name).rows(as_of="yesterday")

    def test_before_a_rebuild_the_old_version_was_seen(self, client: hw.Client, past: tuple[Keeper, hw.ManualClock]):
        keeper, clock = past
        clock.advance("1 minute")
        newer = keeper.rebuilt()
        newer.commit([total("pens", 20), total("paper", 10)])
        newer.store.make_current(newer.table.name, 2)
        view = client.view(keeper.table.name)
        assert [row["n"] for row in view.rows()] == [10, 20]
        assert [row["n"] for row in view.rows(as_of=NOON + timedelta(minutes=2))] == [1, 2]
        assert [row["n"] for row in view.rows(as_of=NOON + timedelta(minutes=3))] == [10, 20]
        newer.close()

    def test_windows_that_were_open_then_are_known(self, client: hw.Client, folder: Path):
        clock = hw.ManualClock(NOON)
        keeper = Keeper(folder, replace(REVENUE, name=fresh("revenue")), fresh(), clock)
        keeper.commit([sales(0, "ink", "1")], watermark=NOON)
        clock.advance("5 minutes")
        keeper.commit([], watermark=NOON + timedelta(minutes=3))
        view = client.view(keeper.table.name)
        assert len(view.rows(as_of=NOON, open=True)) == 1
        assert view.rows(open=True) == []
        keeper.close()

    # -- changes -------------------------------------------------------------------------------------------------

    def test_changes_have_the_row_before_and_after(self, client: hw.Client, past: tuple[Keeper, hw.ManualClock]):
        keeper, _ = past
        changes = list(client.view(keeper.table.name).changes())
        found = [(change.op, change.key[0], change.before, change.after) for change in changes]
        assert found == [
            ("insert", "pens", None, total("pens", 1)),
            ("insert", "ink", None, total("ink", 1)),
            ("update", "pens", total("pens", 1), total("pens", 2)),
            ("delete", "ink", total("ink", 1), None),
            ("insert", "paper", None, total("paper", 1)),
        ]
        assert [change.transaction.last for change in changes] == [False, True, True, False, True]
        assert changes[2].transaction.committed_at == NOON + timedelta(minutes=1)
        assert changes[0].table == keeper.table.name

    def test_a_large_batch_of_changes_is_one_transaction(self, client: hw.Client, folder: Path):
        keeper = Keeper(folder, replace(REVENUE, name=fresh("large")))
        rows = [sales(number, f"c{number}", f"{number}.25") for number in range(2_500)]
        keeper.commit(rows)
        changes = list(client.view(keeper.table.name).changes())
        assert [change.after for change in changes] == rows
        assert [change.transaction.index for change in changes] == list(range(2_500))
        assert [change.transaction.last for change in changes] == [False] * 2_499 + [True]
        keeper.close()

    def test_changes_resume_behind_a_position(self, client: hw.Client, past: tuple[Keeper, hw.ManualClock]):
        view = client.view(past[0].table.name)
        changes = list(view.changes())
        for at, change in enumerate(changes):
            assert list(view.changes(since=change.position)) == changes[at + 1 :]
            assert list(view.changes(since=str(change.position))) == changes[at + 1 :]
        assert list(view.changes(since="latest")) == []

    def test_that_a_window_became_final_is_no_change(self, client: hw.Client, revenue: Keeper):
        revenue.commit([sales(5, "ink", "1")], watermark=NOON + timedelta(minutes=3))
        changes = list(client.view(revenue.table.name).changes())
        assert [change.op for change in changes] == ["insert"] * 4
        assert changes[-1].transaction.last

    def test_a_snapshot_and_what_follows_make_the_rows(self, client: hw.Client, totals: Keeper):
        view = client.view(totals.table.name)
        totals.commit([total("pens", 9)], deletes=[{"category": "ink"}])
        snapshot = list(view.changes(snapshot=True))
        assert {change.op for change in snapshot} == {"read"}
        rows = {change.key: change.after for change in snapshot}
        totals.commit([total("chalk", 1)], deletes=[{"category": "paper"}])
        for change in view.changes(since=snapshot[-1].position):
            rows.pop(change.key, None)
            if change.after is not None:
                rows[change.key] = change.after
        assert sorted(rows.values(), key=lambda row: str(row["category"])) == view.rows()

    def test_a_follower_gets_changes_as_they_come(self, client: hw.Client, totals: Keeper):
        changes = client.view(totals.table.name).changes(since="latest", follow=True)
        later = threading.Timer(0.2, totals.commit, ([total("mine", 1)],))
        later.start()
        change = next(changes)
        assert (change.op, change.after) == ("insert", total("mine", 1))
        later.join()
        changes.close()  # type: ignore[attr-defined]

    def test_a_position_of_an_older_version_is_refused(self, client: hw.Client, totals: Keeper):
        view = client.view(totals.table.name)
        position = list(view.changes())[-1].position
        newer = totals.rebuilt()
        newer.commit([total("pens", 1)])
        newer.store.make_current(newer.table.name, 2)
        with pytest.raises(errors.RefusedError):
            list(view.changes(since=position))
        assert [change.op for change in view.changes(snapshot=True)] == ["read"]
        with pytest.raises(errors.BadOffsetError):
            list(view.changes(since=hw.Position.of("something", {0: 1})))
        newer.close()

    # -- tables --------------------------------------------------------------------------------------------------

    @pytest.fixture
    def products(self, client: hw.Client) -> str:
        """A table of three keys, of which one was updated and another deleted."""
        name = fresh("products")
        type_ = "product_id int, name string, price decimal(38,18), since timestamp"
        client.create_topic(name, type_, key="product_id", compact=True, partitions=2)
        for number, word, price in ((7, "pen", "1"), (9, "ink", "3"), (8, "paper", "5.5"), (7, "quill", "2328.28")):
            row = {"product_id": number, "name": word, "price": Decimal(price), "since": NOON + timedelta(days=number)}
            client.send(name, row)
        client.delete(name, key=9)
        return name

    def test_a_table_is_read_like_a_view(self, client: hw.Client, products: str):
        view = client.view(products)
        assert [(row["product_id"], row["name"]) for row in view.rows()] == [(7, "quill"), (8, "paper")]
        assert view.rows(limit=1)[0]["since"] == NOON + timedelta(days=7)
        assert [row["name"] for row in view.rows(where="price > 5", order=["-product_id"])] == ["paper", "quill"]
        assert [row["name"] for row in view.rows(order=["-product_id"], limit=1)] == ["paper"]
        assert (view.get(7)["price"], view.get(9)) == (Decimal("2328.28"), None)
        assert client.table(products).get(7) == view.get(7)
        assert products not in client.views()

    def test_a_table_has_the_event_of_a_receipt_at_once(self, client: hw.Client, totals: Keeper, products: str):
        receipt = client.send(products, {"product_id": 1, "name": "new", "price": "0", "since": NOON})
        assert client.view(products).get(1, after=receipt, timeout=0)["name"] == "new"
        with pytest.raises(errors.UnknownTopicError):
            client.view(products).rows(after=client.send(totals.topic, {"order_id": "x"}))

    def test_a_table_has_neither_a_past_nor_windows_nor_changes_of_a_view(self, client: hw.Client, products: str):
        view = client.view(products)
        for read in (lambda: view.rows(as_of="-1m"), view.open_windows):
            with pytest.raises(errors.BadQueryError):
                read()
        with pytest.raises(errors.RefusedError):
            list(view.changes())

    def test_sql_joins_views_and_tables(self, client: hw.Client, totals: Keeper, products: str):
        text = f"""
            select p.product_id, p.price, p.since, t.n from "{products}" p
            left join "{totals.table.name}" t on t.category = p.name where p.price < ? order by p.price
        """
        assert client.sql(text, ["1000000"]).rows == [
            (8, "5.5", "2026-01-09T12:00:00Z", 1),
            (7, "2328.28", "2026-01-08T12:00:00Z", None),
        ]
        with pytest.raises(errors.BadQueryError):
            client.sql(f'select * from "{products}$rows" join missing')

    def test_neither_a_topic_nor_a_misspelt_table_is_a_view(self, client: hw.Client, totals: Keeper, products: str):
        with pytest.raises(errors.UnknownViewError) as caught:
            client.view(products[:-1]).rows()
        assert products in caught.value.data["near"]
        with pytest.raises(errors.UnknownViewError) as caught:
            client.view(totals.topic).rows()
        assert caught.value.fix == f"headwater cat {totals.topic}"

    # -- SQL and the system's own views --------------------------------------------------------------------------

    def test_sql_joins_views(self, client: hw.Client, totals: Keeper):
        name = totals.table.name
        text = f'select category, n * 2 as twice from "{name}" where n > ? order by 1'
        answer = client.sql(text, [0])
        assert (answer.columns, answer.complete) == (("category", "twice"), True)
        assert answer.rows == [("ink", 2), ("paper", 2), ("pens", 4)]
        cut = client.sql(text, [0], limit=2)
        assert (len(cut.rows), cut.complete) == (2, False)

    def test_values_of_sql_come_as_they_are(self, client: hw.Client, totals: Keeper):
        answer = client.sql("select x'00ff', 9007199254740993, 1.5, null, 'ä', 9e999")
        assert answer.rows == [(b"\x00\xff", 9007199254740993, 1.5, None, "ä", float("inf"))]

    def test_sql_cannot_write(self, client: hw.Client, totals: Keeper):
        for text in (f'delete from "{totals.table.name}"', "select * from hw$outbox", "pragma journal_mode"):
            with pytest.raises(errors.BadQueryError):
                client.sql(text)

    def test_pipelines_are_a_view(self, client: hw.Client, totals: Keeper):
        (row,) = client.view("hw_pipelines").rows(key=totals.table.name)
        assert (row["state"], row["in_"], row["used"], row["unaccounted"]) == ("running", 5, 5, 0)
        assert row["last_commit_at"].tzinfo is not None

    def test_late_and_quarantined_events_are_views(self, client: hw.Client, totals: Keeper):
        totals.commit([], events=3, late=(aside(7),), quarantined=(aside(8, "ZeroDivisionError: /"),))
        name = totals.table.name
        (late,) = client.view("hw_late").rows(where=f"pipeline = '{name}'")
        assert (late["offset"], late["value"]) == (7, '{"order_id":"o-7"}')
        assert late["occurred_at"] == NOON + timedelta(seconds=7)
        (bad,) = client.view("hw_quarantine").rows(where=f"pipeline = '{name}'", limit=5)
        assert bad["reason"] == "ZeroDivisionError: /"
        with pytest.raises(errors.BadQueryError):
            client.view("hw_late").rows(as_of="-1m")
