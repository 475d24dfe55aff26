"""The page: everything in one answer, and nothing of a producer's that could run."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

import headwater.server

SOURCE = Path(headwater.server.__file__).parent / "page"


def test_scripts_and_styles_run_only_with_the_nonce_of_this_answer(web: httpx.Client):
    one, two = web.get("/"), web.get("/")
    nonces = [re.findall(r'nonce="([^"]+)"', answer.text) for answer in (one, two)]
    for answer, found in zip((one, two), nonces, strict=True):
        assert len(found) == 2
        assert len(set(found)) == 1
        policy = answer.headers["content-security-policy"]
        assert f"script-src 'nonce-{found[0]}'" in policy
        assert f"style-src 'nonce-{found[0]}'" in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    assert nonces[0] != nonces[1]


def test_the_page_needs_nothing_from_elsewhere(web: httpx.Client):
    text = web.get("/").text
    elsewhere = [
        url for url in re.findall(r"https?://[^\s\"'<>]+", text) if not url.startswith("http://www.w3.org/")
    ]
    assert elsewhere == []
    assert "{{" not in text


def test_the_page_has_no_inline_handlers_and_no_markup_from_data():
    html = (SOURCE / "page.html").read_text()
    script = (SOURCE / "page.js").read_text()
    assert not re.search(r"\son\w+=", html)
    assert "style=" not in html
    for dangerous in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert dangerous not in script
