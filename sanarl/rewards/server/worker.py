"""The process of one scorer or decoder: reads jobs from a socket, loads their media ahead, answers with JSON.

Started by path, so that an interpreter without sanarl can run it: PYTHON worker.py FD SPEC
"""

import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
FREE: Message = {}
"""Stands among jobs: nothing to do but to free what was scored."""


def find_sanarl() -> None:
    """Let this interpreter import this very package, and nothing else that lies beside it."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0] or ".") == here:
        del sys.path[0]
    root = os.path.dirname(os.path.dirname(here))

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG004  (the import system's)
            if name != "sanarl":
                return None
            file = os.path.join(root, "__init__.py")
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[root])

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


class Channel:
    """Messages of JSON on a socket, each after its length; both threads may send."""

    def __init__(self, connection: socket.socket):
        self._socket, self._lock = connection, threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message."""
        body = json.dumps(message).encode()
        with self._lock:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)

    def receive(self) -> Message | None:
        """The next message; None when the service is gone."""
        size = self._exactly(4)
        body = self._exactly(int.from_bytes(size, "big")) if size is not None else None
        return json.loads(body) if body is not None else None

    def _exactly(self, count: int) -> bytes | None:
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def serve(
    channel: Channel,
    load: Callable[[Message], Any],
    work: Callable[[Message, Any], Message],
    free: Callable[[Any], None],
    jobs: "queue.SimpleQueue[Message]",
) -> None:
    """Answer jobs one after the other, with the media of the next already loaded.

    What was scored is freed by the thread that loads: returning a few hundred megabytes takes as long as a small model.
    """
    loaded: queue.Queue[tuple[Message, Any, str | None]] = queue.Queue(maxsize=1)
    spent: list[Any] = []

    def load_ahead() -> None:
        while True:
            job = jobs.get()
            while spent:
                free(spent.pop())
            if job is FREE:
                continue
            try:
                loaded.put((job, load(job), None))
            except Exception as error:
                loaded.put((job, None, f"its media cannot be read: {type(error).__name__}: {error}"))

    threading.Thread(target=load_ahead, daemon=True).start()
    while True:
        job, media, error = loaded.get()
        answer = {"error": error} if error is not None else work(job, media)
        channel.send({"kind": "done", "id": job["id"], **answer})
        if error is None:
            spent.append(media)
        del media
        jobs.put(FREE)


def listen(channel: Channel, jobs: "queue.SimpleQueue[Message]") -> None:
    """Answer pings at once, queue jobs, and end the process with the service."""
    while True:
        try:
            message = channel.receive()
        except OSError:
            message = None
        if message is None:
            os._exit(0)
        if message["kind"] == "ping":
            channel.send({"kind": "pong"})
        else:
            jobs.put(message)


def main() -> None:
    """Load what SPEC says, tell that it is ready, serve until the service is gone."""
    find_sanarl()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    spec = json.loads(sys.argv[2])
    jobs: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(channel, jobs), daemon=True).start()
    try:
        if sys.version_info < (3, 11):  # noqa: UP036  (venv_python may name any)
            raise RuntimeError(f"{sys.executable} is Python {sys.version.split()[0]}; accepted: 3.11 or newer")
        from sanarl.rewards.server.scoring import Decoder, Scorer

        worker = Decoder(spec) if spec["kind"] == "decoder" else Scorer(spec)
    except BaseException as error:
        from sanarl.errors import UserError

        known = isinstance(error, UserError | RuntimeError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        channel.send({"kind": "failed", "error": text, "mendable": isinstance(error, UserError)})
        sys.exit(1)
    channel.send({"kind": "ready", "notes": worker.notes})
    serve(channel, worker.load, worker.work, worker.free, jobs)


if __name__ == "__main__":
    main()
