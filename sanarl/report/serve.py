"""The page of a running job, on this machine alone."""

import errno
import hashlib
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from sanarl.errors import UserError
from sanarl.report.document import document
from sanarl.report.page import as_json, page

HOST = "127.0.0.1"
FOLLOW_S = 5.0
FILES = ("metrics.jsonl", "rewards.jsonl", "events.jsonl", "config.json", "log.txt", "samples", ".lock")


class Source:
    """The document of some runs, read again only when one of their files has changed."""

    def __init__(self, folders: list[Path]):
        """Nothing is read yet."""
        self.folders = folders
        self._lock = Lock()
        self._tag = ""
        self._text = ""

    def current(self) -> tuple[str, str]:
        """(a tag that changes with the files, the document as JSON)."""
        tag = self.tag()
        with self._lock:
            if tag != self._tag:
                self._text, self._tag = as_json(document(self.folders)), tag
            return self._tag, self._text

    def tag(self) -> str:
        """A quoted digest of when the runs' files were written last, and of how long they are."""
        seen = []
        for path in (folder / name for folder in self.folders for name in FILES):
            try:
                stat = path.stat()
                seen.append(f"{stat.st_mtime_ns}:{stat.st_size}")
            except OSError:
                seen.append("-")
        return f'"{hashlib.blake2b(" ".join(seen).encode(), digest_size=12).hexdigest()}"'


def server(folders: list[Path], port: int) -> ThreadingHTTPServer:
    """A server that answers ``/`` and ``/data.json`` once ``serve_forever`` is called; 0 takes any free port.

    It listens to this machine only, and answers only those who ask for it by its own name, so that no page of another
    site can read a run through the browser.

    Raises:
        UserError: when the port cannot be had.
    """
    source = Source(folders)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = {f"{host}:{self.server.server_port}" for host in (HOST, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get("Host") not in names:
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this page is served to this machine alone\n")
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html", page(document(folders), FOLLOW_S).encode("utf-8", "replace"))
            elif self.path == "/data.json":
                tag = self.headers.get("If-None-Match")
                if tag == source.tag():
                    self._answer(HTTPStatus.NOT_MODIFIED, "application/json", b"")
                    return
                now, text = source.current()
                self._answer(HTTPStatus.OK, "application/json", text.encode("utf-8", "replace"), now)
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"nothing here; the page is at /\n")

        def _answer(self, status: HTTPStatus, kind: str, body: bytes, tag: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            if tag is not None:
                self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing of every request."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A browser that closes its tab in the middle of an answer is no error."""

    try:
        return Server((HOST, port), Handler)
    except OSError as error:
        raise UserError(f"sanarl report --serve: {_reason(error, port)}") from error
    except OverflowError as error:
        raise UserError(f"sanarl report --port: found {port}; accepted 0 (any free port) to 65535") from error


def _reason(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {HOST} is in use; name another with --port N, or --port 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"port {port} needs root; name one above 1023 with --port N"
    return f"cannot listen at {HOST}:{port}: {error.strerror}"
