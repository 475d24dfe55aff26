"""The gateway's routes as one application."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from starlette.types import ASGIApp

from headwater import __version__
from headwater.server.edge import problems
from headwater.server.edge.guard import Guard
from headwater.server.gateway import Gateway
from headwater.server.routes import (
    changes,
    events,
    follow,
    frames,
    groups,
    live,
    openapi,
    page,
    sql,
    status,
    topics,
    views,
)

__all__ = ["make_app", "make_routes"]


def make_routes(gateway: Gateway) -> FastAPI:
    """The routes alone, without the guard in front."""
    app = FastAPI(
        title="Headwater",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    for family in (topics, events, frames, follow, groups, views, changes, sql, live, status, page):
        app.include_router(family.routes(gateway))
    problems.install(app)
    openapi.install(app)
    return app


def make_app(gateway: Gateway, hosts: Iterable[str]) -> ASGIApp:
    """Everything a request passes through."""
    return Guard(make_routes(gateway), hosts, gateway.limits)
