"""Selection of pipelines by name and plus signs."""

from __future__ import annotations

import pytest

from headwater.app import App
from headwater.errors import UsageError
from headwater.pipelines import Selection


def shop() -> App:
    """Topics orders and visits; paid reads orders, totals reads paid and visits, best reads totals."""
    app = App("shop")
    app.topic("orders", "id int, amount int")
    app.topic("visits", "id int")
    app.topic("unread", "id int")
    app.stream("best", sql="select * from totals")
    app.stream("totals", sql="select paid.id from paid join visits on paid.id = visits.id")
    app.stream("paid", sql="select * from orders where amount > 0")
    app.stream("bots", sql="select * from visits")
    return app


@pytest.mark.parametrize(
    ("select", "exclude", "expected"),
    [
        ([], [], {"paid", "totals", "best", "bots"}),
        (["totals"], [], {"totals"}),
        (["+totals"], [], {"paid", "totals"}),
        (["totals+"], [], {"totals", "best"}),
        (["+totals+"], [], {"paid", "totals", "best"}),
        (["paid", "bots"], [], {"paid", "bots"}),
        (["visits+"], [], {"totals", "best", "bots"}),
        ([], ["totals+"], {"paid", "bots"}),
        (["+best"], ["paid"], {"totals", "best"}),
    ],
)
def test_selectors_name_pipelines_and_their_neighbours(select, exclude, expected):
    assert set(Selection(tuple(select), tuple(exclude)).names(shop().resolve())) == expected


def test_selected_pipelines_come_after_their_inputs():
    names = Selection(("+best",)).names(shop().resolve())
    assert names == ("paid", "totals", "best")


def test_an_unknown_name_leads_to_the_nearest_pipeline():
    with pytest.raises(UsageError) as refused:
        Selection(("+total",)).names(shop().resolve())
    assert refused.value.fix == "totals"


def test_a_topic_leads_to_its_readers():
    with pytest.raises(UsageError) as refused:
        Selection(("visits",)).names(shop().resolve())
    assert refused.value.fix == "visits+"
    with pytest.raises(UsageError) as refused:
        Selection(("unread+",)).names(shop().resolve())
    assert refused.value.fix is None


def test_an_empty_selection_is_refused():
    with pytest.raises(UsageError):
        Selection(("paid",), ("orders+",)).names(shop().resolve())
