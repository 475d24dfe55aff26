"""HTTP requests to a node: safe requests are retried, and errors are raised as their original classes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import httpx
import msgspec

from headwater.backoff import Backoff
from headwater.errors import BadSettingError, HeadwaterError, UnreachableError

__all__ = ["Transport"]

_BACKOFF: Final = Backoff(timedelta(milliseconds=50), timedelta(seconds=1))
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # the node has not seen the request
_BUSY: Final = (429, 503)  # the node has done nothing, so any request may be repeated


class Transport:
    """One node's address; safe to share between threads.

    Args:
        url: Such as "http://127.0.0.1:8642".
        patience: How long to retry when a node that has responded before is unreachable or busy.
        timeout: How long a response may take.
    """

    def __init__(self, url: str, patience: timedelta, timeout: timedelta) -> None:
        self.url = url.rstrip("/")
        self._patience = patience.total_seconds()
        self._timeout = timeout.total_seconds()
        self._connected = False
        try:
            self._client = httpx.Client(
                base_url=self.url,
                trust_env=False,  # proxies of the environment do not apply to nodes
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30),
            )
        except (httpx.InvalidURL, ValueError) as error:
            what = f"cannot connect to {url!r}: {error}"
            raise BadSettingError(what, fix='hw.connect("http://127.0.0.1:8642")') from None

    def call(
        self,
        method: str,
        path: str,
        *,
        document: Any = None,
        content: bytes | None = None,
        media: str = "application/json",
        params: Mapping[str, str | int | float] | None = None,
        repeatable: bool = True,
        wait: float = 0,
    ) -> httpx.Response:
        """Send a request and return its response.

        Args:
            method: The HTTP method.
            path: The path below the node's address.
            document: The body, to be encoded as JSON.
            content: The body as bytes, instead of `document`.
            media: Media type of the body.
            params: Query parameters.
            repeatable: Whether to send the request again after a lost response.
            wait: Seconds for which the request asks the node to wait; added to the timeout.

        Raises:
            UnreachableError: No response came, including retries.
            HeadwaterError: The error that the node responded with.
        """
        body = msgspec.json.encode(document) if document is not None else content
        headers = {"content-type": media} if body is not None else None
        timeout = httpx.Timeout(self._timeout + wait, connect=5)
        deadline = time.monotonic() + self._patience
        attempt, retry_after = 0, 0.0
        while True:
            attempt += 1
            try:
                answer = self._client.request(
                    method, path, content=body, headers=headers, params=params, timeout=timeout
                )
            except httpx.TransportError as error:
                self._raise_if_final(error, deadline, repeatable=repeatable)
            except RuntimeError:
                raise UnreachableError("the client is closed", fix="hw.connect(...) again") from None
            else:
                self._connected = True
                if self._client.is_closed:
                    # Another thread closed the client, perhaps before this request opened its connection,
                    # which the client then never closes.
                    answer.extensions["network_stream"].close()
                if answer.is_success:
                    return answer
                if answer.status_code not in _BUSY or time.monotonic() >= deadline:
                    raise self._error_from(answer)
                asked = answer.headers.get("retry-after", "")  # seconds, or a date, which is ignored
                retry_after = min(float(asked), _BACKOFF.longest.total_seconds()) if asked.isdecimal() else 0.0
            delay = max(retry_after, _BACKOFF.delay(attempt).total_seconds())
            time.sleep(max(0.0, min(delay, deadline - time.monotonic())))

    def json(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON document of its response."""
        return msgspec.json.decode(self.call(method, path, **options).content)

    def _raise_if_final(self, error: httpx.TransportError, deadline: float, *, repeatable: bool) -> None:
        sent = not isinstance(error, _NOT_SENT)
        if sent and not repeatable:
            raise UnreachableError(
                f"the response of {self.url} was lost",
                detail="the events may or may not be in the log; sending them again could append them twice",
                fix='send through client.producer(topic, id="…"): it retries without appending twice',
                url=self.url,
                sent=True,
            ) from error
        if time.monotonic() >= deadline or not (sent or self._connected):
            raise UnreachableError(
                f"no node answers at {self.url}",
                detail=str(error) or type(error).__name__,
                fix="headwater run",
                url=self.url,
                sent=sent,
            ) from error

    def _error_from(self, answer: httpx.Response) -> HeadwaterError:
        try:
            problem = msgspec.json.decode(answer.content, type=dict[str, Any])
            return HeadwaterError.from_problem(problem)
        except (msgspec.MsgspecError, TypeError):
            what = f"{self.url} is not a Headwater node"
            return UnreachableError(what, detail=f"status {answer.status_code}", fix="headwater run", url=self.url)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
