"""The description at /api/openapi.json has every route, and says of each what it takes and gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from headwater.log import EventLog
from headwater.server.gateway import Gateway
from headwater.server.limits import Limits
from headwater.server.web_server import make_routes


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The description, of an app that nobody serves."""
    with EventLog(tmp_path_factory.mktemp("described")) as log:
        return make_routes(Gateway(log, Limits())).openapi()


def operations(described: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def references(part: Any) -> set[str]:
    """All names of documents that a part of the description refers to."""
    if isinstance(part, dict):
        own = {part["$ref"].rsplit("/", 1)[1]} if "$ref" in part else set()
        return own.union(*(references(value) for value in part.values()))
    return set().union(*(references(value) for value in part)) if isinstance(part, list) else set()


def test_every_route_is_described(tmp_path: Path, described: dict[str, Any]):
    with EventLog(tmp_path) as log:
        app = make_routes(Gateway(log, Limits()))
        routers = [route.original_router for route in app.routes if hasattr(route, "original_router")]
        served = {
            (method, route.path)
            for holder in (*routers, app)
            for route in holder.routes
            if isinstance(route, APIRoute)
            for method in route.methods or ()
        }
    assert len(served) > 20
    assert served == set(operations(described))


def test_every_operation_says_what_it_does_and_how_it_can_fail(described: dict[str, Any]):
    for place, operation in operations(described).items():
        assert operation["summary"], place
        assert operation["description"], place
        assert any(status.startswith("2") for status in operation["responses"]), place
        problem = operation["responses"]["default"]["content"]["application/problem+json"]["schema"]
        assert problem == {"$ref": "#/components/schemas/Problem"}, place
        assert "422" not in operation["responses"], place


def test_every_parameter_of_a_path_is_described(described: dict[str, Any]):
    for (method, path), operation in operations(described).items():
        named = {part.strip("{}") for part in path.split("/") if part.startswith("{")}
        found = {given["name"] for given in operation.get("parameters", []) if given["in"] == "path"}
        assert found == named, (method, path)


def test_requests_with_a_body_describe_it(described: dict[str, Any]):
    for (method, path), operation in operations(described).items():
        assert ("requestBody" in operation) == (method == "POST"), (method, path)


def test_every_document_that_is_referred_to_exists(described: dict[str, Any]):
    assert references(described) <= set(described["components"]["schemas"])


def test_no_two_operations_have_one_name(described: dict[str, Any]):
    names = [operation["operationId"] for operation in operations(described).values()]
    assert len(names) == len(set(names))


def test_a_node_serves_its_description(web: httpx.Client, described: dict[str, Any]):
    assert web.get("/api/openapi.json").json() == described
