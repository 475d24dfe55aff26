"""The page and its files: nothing inline, nothing from elsewhere, and no way to other files of the machine."""

from __future__ import annotations

import re

import httpx
import pytest

from headwater.console import ASSETS


def test_the_policy_of_the_page_lets_only_files_of_the_node_run(web: httpx.Client):
    answer = web.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ") if " " in part)
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_nothing_of_the_page_is_inline(web: httpx.Client):
    text = web.get("/").text
    assert not re.search(r"\son\w+=|\sstyle=|<style", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_everything_the_page_loads_is_served_with_its_type(web: httpx.Client):
    found = re.findall(r'(?:src|href)="([^"]+)"', web.get("/").text)
    assert len(found) >= 3
    for path in found:
        answer = web.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in answer.headers["cache-control"]
        kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert answer.headers["content-type"].split(";")[0] == kinds[path.rpartition(".")[2]]


@pytest.mark.parametrize("file", sorted(ASSETS.glob("*.[jc]s*")), ids=lambda file: file.name.split("-")[0])
def test_no_file_of_the_page_names_another_host(file):
    named = set(re.findall(r"https?://([\w.-]+)", file.read_text()))
    # Names of XML languages, and pages that messages for developers point to.
    assert named <= {"www.w3.org", "svelte.dev", "svelteflow.dev"}


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2F__init__.py", "%2e%2e%2f__init__.py", "..%5C__init__.py", "%00", "a/../b"]
)
def test_no_other_file_can_be_had(web: httpx.Client, name: str):
    assert web.get(f"/assets/{name}").status_code == 404
