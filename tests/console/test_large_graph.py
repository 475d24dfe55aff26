"""The graph and the table of an app with many pipelines, before its first event and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.log import Topic
from headwater.server import Node
from headwater.store import EventCounts, ViewTable
from tests.console.browser import Browser
from tests.console.given import STOCK, Kept

NAMES = ("revenue_by_category_and_minute", "orders_of_each_customer_in_the_last_hour", "stock", "takeovers_by_country")
# Elements of a box that show less than they contain.
CUT = """
    return [...document.querySelectorAll('[data-box] *, [data-pipeline] td *')]
        .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
                       && getComputedStyle(e).overflow !== 'visible')
        .map((e) => e.innerText)
"""
# Pairs of boxes of which one covers the other.
COVERED = """
    const boxes = [...document.querySelectorAll('[data-box]')].map((e) => [e.dataset.box, e.getBoundingClientRect()]);
    return boxes.flatMap(([a, x], i) => boxes.slice(i + 1).filter(([b, y]) =>
        x.left < y.right - 1 && y.left < x.right - 1 && x.top < y.bottom - 1 && y.top < x.bottom - 1)
        .map(([b]) => [a, b]));
"""
# Whether each box can be brought into sight by scrolling its frame.
REACHABLE = """
    const frame = document.querySelector('#flow .graph');
    const edges = frame.getBoundingClientRect();
    return [...frame.querySelectorAll('[data-box]')].every((box) => {
        const place = box.getBoundingClientRect();
        const left = place.left - edges.left + frame.scrollLeft, top = place.top - edges.top + frame.scrollTop;
        return left >= 0 && top >= 0 && left + place.width <= frame.scrollWidth + 1
               && top + place.height <= frame.scrollHeight + 1;
    });
"""


@contextlib.contextmanager
def many(folder: Path, node: Node, number: int) -> Iterator[list[Kept]]:
    """Views in chains of up to five, over three topics."""
    node.log.create(Topic.declare("orders", "order_id int"))
    made: list[Kept] = []
    for place in range(number):
        name = f"{NAMES[place % len(NAMES)]}_{place}"
        source = "orders" if place % 5 == 0 else made[-1].table.name
        view = Kept(folder, ViewTable(name, 1, STOCK.schema, STOCK.key), source)
        made.append(view)
        view.tell("running", inputs=(source,))
    try:
        yield made
    finally:
        for view in made:
            view.close()


@pytest.mark.parametrize("number", [14, 50])
def test_a_graph_of_many_pipelines_can_be_read(browser: Browser, node: Node, tmp_path: Path, number: int):
    with many(tmp_path, node, number) as views:
        views[1].tell("waiting", detail="no broker at kafka:9092; waiting for 4 s so far", inputs=(views[1].topic,))
        browser.open(node.url)
        browser.wait(f"return document.querySelectorAll('[data-box^=\"pipeline:\"]').length === {number}")
        assert browser.run("return document.documentElement.scrollWidth") <= 1280
        assert browser.run(COVERED) == []
        assert browser.run(CUT) == []
        assert browser.run(REACHABLE)
        waiting = f"[data-box='pipeline:{views[1].table.name}']"
        assert "no broker at kafka:9092" in browser.text(waiting)


def test_before_the_first_event_there_is_no_rate_and_nothing_to_add_up(browser: Browser, node: Node, tmp_path: Path):
    with many(tmp_path, node, 2) as (first, second):
        browser.open(node.url)
        browser.wait_text(f"[data-pipeline={second.table.name}]", "no events yet")
        assert browser.run("return document.querySelectorAll('[data-rate]').length") == 0
        assert "adds up" not in browser.text("#pipelines")
        first.commit([{"product": "lamp", "left": 4}], EventCounts(1, 1, 0, 0, 0))
        browser.wait("return document.querySelectorAll('[data-rate]').length > 0")
        browser.wait_text(f"[data-pipeline={first.table.name}]", "adds up")
        assert "no events yet" in browser.text(f"[data-pipeline={second.table.name}]")
        assert browser.run(f"return document.querySelector('[data-rate$=\"{second.table.name}\"]')") is None


def test_what_is_not_loaded_yet_is_called_loading(browser: Browser, node: Node, tmp_path: Path):
    with many(tmp_path, node, 2):
        # Every request of the page waits a second.
        browser.command("Network.enable")
        browser.command(
            "Network.emulateNetworkConditions", offline=False, latency=1000, downloadThroughput=-1, uploadThroughput=-1
        )
        try:
            browser.open(node.url)
            shown = browser.wait("const t = document.body.innerText; return t.includes('oading') ? t : ''")
            assert "no topics yet" not in shown.lower()
            assert "no pipelines yet" not in shown.lower()
            browser.wait_text("#pipelines", "revenue_by")
        finally:
            browser.command(
                "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
            )
