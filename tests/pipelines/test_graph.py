"""The graph of an app: every input known, no circle, and an order in which everything can run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import CycleError, SourceLocation, UnknownInputError
from headwater.log import Topic
from headwater.pipelines import Edge, Graph, Pipeline, PipelineKind, faults

ORDERS = Topic.declare("orders", "id int")
CLICKS = Topic.declare("clicks", "id int")


def reads(
    name: str, *inputs: str, kind: PipelineKind = PipelineKind.STREAM, sql: str | None = None, line: int = 1
) -> Pipeline:
    place = SourceLocation("app.py", line, f"def {name}")
    function = None if sql else (lambda: None)
    return Pipeline(name=name, kind=kind, inputs=inputs, function=function, sql=sql, location=place)


def names(graph: Graph) -> list[str]:
    return [pipeline.name for pipeline in graph.pipelines]


def test_a_pipeline_comes_after_those_it_reads():
    graph = Graph.of([ORDERS], [reads("c", "b"), reads("b", "a"), reads("a", "orders")])
    assert names(graph) == ["a", "b", "c"]
    assert graph.edges == (Edge("orders", "a"), Edge("a", "b"), Edge("b", "c"))


def test_what_could_stand_anywhere_stays_as_it_was_declared():
    graph = Graph.of([ORDERS, CLICKS], [reads("z", "orders"), reads("a", "clicks"), reads("m", "orders", "clicks")])
    assert names(graph) == ["z", "a", "m"]
    assert [topic.name for topic in graph.topics] == ["orders", "clicks"]


def test_an_app_may_have_no_pipelines():
    assert Graph.of([ORDERS], []) == Graph((ORDERS,), (), ())


def test_a_missing_input_offers_near_names():
    with pytest.raises(UnknownInputError) as caught:
        Graph.of([ORDERS, CLICKS], [reads("totals", "order", line=7)])
    error = caught.value
    assert error.data == {"pipeline": "totals", "input": "order", "near": ["orders"]}
    assert (error.fix, error.location) == ("orders", SourceLocation("app.py", 7, "def totals"))


def test_a_missing_table_of_sql_is_no_parameter():
    with pytest.raises(UnknownInputError) as caught:
        Graph.of([ORDERS], [reads("totals", "ORDERS", sql="select * from ORDERS")])
    assert "parameter" not in str(caught.value)
    assert caught.value.data["near"] == ["orders"]


def test_a_missing_input_without_near_names_says_how_to_declare_it():
    with pytest.raises(UnknownInputError) as caught:
        Graph.of([], [reads("totals", "payments")])
    assert caught.value.fix == 'payments = app.topic("payments", …)'
    assert caught.value.data["near"] == []


def test_files_cannot_be_read_by_a_pipeline():
    with pytest.raises(UnknownInputError) as caught:
        Graph.of([ORDERS], [reads("exported", "orders", kind=PipelineKind.FILES), reads("totals", "exported", line=5)])
    assert caught.value.data == {"pipeline": "totals", "input": "exported"}
    assert caught.value.location.line == 5


@pytest.mark.parametrize(
    ("pipelines", "cycle"),
    [
        ([reads("a", "a")], ["a", "a"]),
        ([reads("a", "b"), reads("b", "a")], ["a", "b", "a"]),
        ([reads("x", "orders", "c"), reads("c", "b"), reads("b", "x")], ["x", "b", "c", "x"]),
    ],
)
def test_a_circle_names_its_members_in_the_direction_of_events(pipelines, cycle):
    with pytest.raises(CycleError) as caught:
        Graph.of([ORDERS], pipelines)
    found = caught.value.data["cycle"]
    assert found[0] == found[-1]
    turns = [cycle[:-1][start:] + cycle[:-1][:start] for start in range(len(cycle) - 1)]
    assert found[:-1] in turns
    assert caught.value.location is not None
    assert "app.py:1" in str(caught.value.detail)


def test_all_faults_are_found_at_once():
    pipelines = [reads("a", "b"), reads("b", "a", "order"), reads("c", "click")]
    found = faults([ORDERS, CLICKS], pipelines)
    assert [type(fault) for fault in found] == [UnknownInputError, UnknownInputError, CycleError]
    assert faults([ORDERS], [reads("a", "orders")]) == []


def test_neighbours_near_and_far():
    graph = Graph.of(
        [ORDERS, CLICKS], [reads("a", "orders"), reads("b", "a", "clicks"), reads("c", "b", "a"), reads("d", "clicks")]
    )
    assert graph.downstream("orders") == ("a", "b", "c")
    assert graph.downstream("c") == ()


@st.composite
def acyclic(draw) -> list[Pipeline]:
    """Pipelines that read only those with a smaller number, or topics, declared in any order."""
    number = draw(st.integers(1, 12))
    made = []
    for index in range(number):
        below = ["orders", "clicks", *(f"p{before}" for before in range(index))]
        inputs = draw(st.lists(st.sampled_from(below), min_size=1, max_size=4, unique=True))
        made.append(reads(f"p{index}", *inputs))
    return draw(st.permutations(made))


@given(acyclic())
def test_any_acyclic_graph_is_put_in_order(pipelines):
    graph = Graph.of([ORDERS, CLICKS], pipelines)
    assert sorted(names(graph)) == sorted(pipeline.name for pipeline in pipelines)
    ready = {"orders", "clicks"}
    for pipeline in graph.pipelines:
        assert set(pipeline.inputs) <= ready
        ready.add(pipeline.name)
    assert len(graph.edges) == sum(len(pipeline.inputs) for pipeline in pipelines)


@given(acyclic(), st.data())
def test_any_circle_is_found(pipelines, data):
    """A pipeline that is made to read itself or something behind it."""
    graph = Graph.of([ORDERS, CLICKS], pipelines)
    chosen = data.draw(st.sampled_from(graph.pipelines))
    behind = data.draw(st.sampled_from([chosen.name, *graph.downstream(chosen.name)]))
    closed = reads(chosen.name, *dict.fromkeys([*chosen.inputs, behind]))
    with pytest.raises(CycleError):
        Graph.of([ORDERS, CLICKS], [closed if p.name == chosen.name else p for p in pipelines])
