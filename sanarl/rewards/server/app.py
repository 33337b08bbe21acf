"""The endpoints of the wire protocol, /healthz and /metrics."""

import asyncio
import json
import math
import uuid as uuids
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import FastAPI, Form, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.requests import ClientDisconnect

from sanarl.rewards import answers, wire
from sanarl.rewards.server.board import Board, Full
from sanarl.rewards.server.gate import Gate
from sanarl.rewards.server.intake import Spool, Stalled, TooLarge, receive
from sanarl.rewards.server.settings import Service
from sanarl.rewards.server.store import DONE, UNASKED, StoreDown
from sanarl.rewards.wire import Malformed

LONGEST_WAIT_S = 8.0
"""A pull must be answered within 10 s."""
DRAINING_RETRY_S = 5

Text = Annotated[str, Form()]


class Api:
    """The service as its endpoints see it.

    Args:
        board: Jobs and results.
        spool: Where bodies go.
        limits: Sizes and times.
        replica: What clients send back to reach this very process.
        health: State of every scorer, and whether the service is whole.
    """

    def __init__(
        self,
        board: Board,
        spool: Spool,
        limits: Service,
        replica: str,
        health: Callable[[], tuple[bool, dict[str, Any]]],
    ):
        self.board, self.spool, self.limits, self.replica, self.health = board, spool, limits, replica, health
        self.draining = False

    async def enqueue(self, request: Request) -> Response:
        """Take a request in: 200 with its uuid, or why not."""
        if self.draining:
            self.board.metrics.add("sanarl_reward_refused_total")
            return _message(503, "the service is ending; try again", DRAINING_RETRY_S)
        announced = request.headers.get("content-length")
        most = self.limits.max_request_mb * 1_000_000
        declared = int(announced) if announced is not None else None  # the HTTP parser lets digits through only
        if declared is not None and declared > most:
            return _message(413, f"found a body of {declared} bytes; accepted: {self.limits.max_request_mb} MB")
        reserved = most if declared is None else declared
        try:
            self.board.reserve(reserved)
        except Full as full:
            self.board.metrics.add("sanarl_reward_refused_total")
            return _message(503, str(full), full.retry_after_s)
        path = self.spool.file(uuids.uuid4().hex)
        taken = False
        try:
            received = await receive(request.stream(), declared, path, self.limits)
            job = await self.board.accept(received, path, reserved)
            taken = True
        except TooLarge as error:
            return _message(413, str(error))
        except Stalled as error:
            return _message(408, str(error))
        except Malformed as error:
            return _message(400, str(error))
        except ClientDisconnect:
            return _message(400, "the client hung up")
        except StoreDown as error:
            return _message(503, str(error), DRAINING_RETRY_S)
        finally:
            if not taken:
                self.board.release(reserved)
                path.unlink(missing_ok=True)
        return JSONResponse({"uuid": job.uuid, "replica_id": self.replica})

    async def pull(self, uuid: Text, type: Text = wire.DEFAULT_TYPE, wait: Annotated[float, Form()] = 0.0) -> Response:
        """A result; 400 while it is not there. ``wait``, ours: seconds to hold the answer back until it is there."""
        clock = asyncio.get_running_loop()
        end = clock.time() + (min(wait, LONGEST_WAIT_S) if math.isfinite(wait) else 0.0)
        pause = 0.01
        while True:
            news = self.board.news
            try:
                found = await self.board.store.get(uuid, type)
            except StoreDown as error:
                return _message(500, str(error))
            if found.state == DONE:
                self.board.pulled(uuid, type)
                return Response(found.text, media_type="application/json")
            if found.state == UNASKED:
                text = answers.failure(type, f"reward {type!r} was not asked for in this request")
                return Response(text, media_type="application/json")
            if found.state == wire.UNKNOWN or clock.time() >= end:
                words = f"no scores for {uuid} yet" if found.state == wire.PENDING else f"{uuid} is not known here"
                return JSONResponse({"message": words, "state": found.state}, 400)
            with suppress(TimeoutError):  # results of other replicas make no news here
                async with asyncio.timeout(min(pause, max(end - clock.time(), 0.0))):
                    await news.wait()
            pause = min(1.5 * pause, 0.1)

    async def push(self, uuid: Text, scores: Text, type: Text = wire.DEFAULT_TYPE) -> Response:
        """A result from elsewhere; it counts when it is the first."""
        try:
            found = json.loads(scores)
            if not isinstance(found, dict) or not isinstance(found.get("scores"), dict | None):
                raise ValueError("accepted: an object with scores")
            text = json.dumps({**found, "type": type}, allow_nan=False)
        except (ValueError, RecursionError) as error:
            return _message(400, f"scores are no result in JSON: {error}")
        job = self.board.jobs.get(uuid)
        if job is None or type not in job.remaining:
            return _message(400, f"nothing waits for {type!r} of {uuid}")
        if (fault := _unfit(found, len(job.head.prompts))) is not None:
            return _message(400, fault)
        self.board.finish(job, type, text, "pushed")
        return _message(200, "Scores received and stored successfully")

    async def ping(self, info_data: Text) -> Response:  # noqa: ARG002  (part of the protocol)
        """Tell that the service is there and the token right."""
        return _message(200, "Ping request received")

    async def latent_attr(self, fields: Text) -> Response:
        """Accepted for the peers' sake: latents are decoded as the VAE's own configuration says."""
        try:
            json.loads(fields)
        except (ValueError, RecursionError) as error:
            return _message(400, f"fields is not JSON: {error}")
        return _message(200, "Latent attributes have no effect here")

    async def healthz(self) -> Response:
        """200 when every scorer is ready and results can be kept."""
        whole, state = self.health()
        try:
            await self.board.store.check()
            state["store"] = "ready"
        except StoreDown as error:
            whole, state["store"] = False, str(error)
        whole = whole and not self.draining
        state["status"] = "ending" if self.draining else "ready" if whole else "not ready"
        return JSONResponse(state, 200 if whole else 503)

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        board = self.board
        up = self.health()[1]["rewards"]
        gauges = [
            ("sanarl_reward_queue_requests", "Requests accepted and not finished.", float(board.requests), {}),
            ("sanarl_reward_queue_bytes", "Bytes that these hold.", float(board.nbytes), {}),
            *(
                ("sanarl_reward_up", "1 when a scorer is ready.", float(state == "ready"), {"reward": name})
                for name, state in up.items()
            ),
        ]
        return PlainTextResponse(board.metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _unfit(found: dict[str, Any], count: int) -> str | None:
    """Why pushed scores cannot be those of ``count`` samples."""
    for key, values in (found.get("scores") or {}).items():
        columns = values.values() if isinstance(values, dict) else [values]
        for column in columns:
            if not isinstance(column, list) or len(column) != count:
                return f"scores of {key!r} are no list of {count}"
    return None


def _message(status: int, text: str, retry_after_s: int | None = None) -> Response:
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else None
    return JSONResponse({"message": text}, status, headers)


def make(api: Api, token: str) -> Any:
    """The ASGI application."""
    app = FastAPI(title="sanarl reward service", docs_url=None, redoc_url=None, openapi_url=None)
    for name in ("enqueue", "pull", "push", "ping", "latent_attr"):
        app.add_api_route(f"/api/reward/{name}", getattr(api, name), methods=["POST"])
    app.add_api_route("/healthz", api.healthz, methods=["GET"])
    app.add_api_route("/metrics", api.metrics, methods=["GET"])
    return Gate(app, token, api.board.metrics)
