"""In front of the endpoints: the token, the size of forms, a line of log without payloads, and counts."""

import hmac
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sanarl.rewards.server.metrics import Metrics

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN = ("/healthz", "/metrics")
"""What needs no token."""
PATHS = ("enqueue", "pull", "push", "ping", "latent_attr")
FORM_LIMIT = 16_000_000
QUIET = ((200, "healthz"), (503, "healthz"), (200, "metrics"), (400, "pull"))
"""Answers that come too often to be logged: looks at the service, and "not yet"."""


class Gate:
    """ASGI middleware.

    Args:
        app: What is behind it.
        token: That requests must carry; empty: none.
        metrics: What is counted.
    """

    def __init__(self, app: Any, token: str, metrics: Metrics):
        self._app, self._metrics = app, metrics
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or refuse it before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, nbytes = time.monotonic(), 0, 0
        headers = dict(scope["headers"])

        async def counted() -> Message:
            nonlocal nbytes
            message = await receive()
            nbytes += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        name = _name(scope["path"])
        refused = self._refusal(scope, headers, name)
        if refused is not None:
            await _answer(noted, *refused)
        else:
            await self._app(scope, counted, noted)
        self._metrics.add("sanarl_reward_http_requests_total", endpoint=name, status=str(status))
        self._metrics.add("sanarl_reward_http_bytes_total", nbytes, endpoint=name)
        if (status, name) not in QUIET:
            client = (scope.get("client") or ("-",))[0]
            line = f"{scope['method']} {name} {status} {nbytes} bytes {time.monotonic() - started:.3f} s from {client}"
            print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=sys.stderr, flush=True)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes], name: str) -> tuple[int, str] | None:
        if scope["path"] in OPEN:
            return None
        if self._expected is not None:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                return 401, "the token is missing or wrong; send Authorization: Bearer TOKEN"
        if scope["method"] == "POST" and name != "enqueue":
            length = headers.get(b"content-length")
            if length is None:
                return 411, "Content-Length is missing"
            if int(length) > FORM_LIMIT:
                return 413, f"found a form of {int(length)} bytes; accepted: at most {FORM_LIMIT}"
        return None


def _name(path: str) -> str:
    """An endpoint's name, for logs and counts: never what a stranger wrote."""
    last = path.rpartition("/")[2]
    known = path in OPEN or (path.startswith("/api/reward/") and last in PATHS)
    return last if known else "other"


async def _answer(send: Send, status: int, text: str) -> None:
    import json

    body = json.dumps({"message": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
