"""A reward service as the protocol page describes Cosmos-RL's, for tests of our client: standard library and numpy.

It knows nothing of ours: no "state", no held pulls. ``script`` makes it misbehave.
"""

import contextlib
import io
import json
import threading
import time
import urllib.parse
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np


class Peer:
    """A service in threads of this process.

    ``script``: endpoint -> answers (status, headers, body) to give first, or "drop" to hang up without one, or
    "trickle" for one that comes in at 50 bytes a second.
    ``scores``: reward -> {key: values}, or a function of the request that gives them; by default the mean of the red
    channel under every reward's name.
    ``polls``: pulls that are answered with "not yet" first.
    """

    def __init__(self, scores=None, polls=0, replica=None):
        self.scores, self.polls, self.replica = scores, polls, replica
        self.requests, self.pulls, self.headers = [], [], []
        self.script = defaultdict(list)
        self.results = {}
        self.asked = defaultdict(int)
        self.lock = threading.Lock()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                name = self.path.rpartition("/")[2]
                with peer.lock:
                    scripted = peer.script[name].pop(0) if peer.script[name] else None
                    answer = scripted or getattr(peer, name)(body, dict(self.headers))
                if answer == "drop":
                    self.close_connection = True
                    return
                if answer == "trickle":
                    self.trickle()
                    return
                status, headers, found = answer
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for key, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def trickle(self):
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                with contextlib.suppress(OSError):
                    for _ in range(1000):
                        self.wfile.write(b" ")
                        time.sleep(0.02)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/api/reward"

    def enqueue(self, body, headers):
        line, _, file = body.partition(b"\n")
        head, media = json.loads(line), np.load(io.BytesIO(file), allow_pickle=False)
        uuid = f"request-{len(self.requests)}"
        self.requests.append((head, media))
        self.headers.append(headers)
        for name in head["reward_fn"]:
            scores = {name: redness(media)} if self.scores is None else self.scores[name]
            if callable(scores):
                scores = scores(head, media)
            self.results[uuid, name] = {"scores": scores, "type": name, "duration": "0.00"}
        return 200, {}, {"uuid": uuid} | ({"replica_id": self.replica} if self.replica else {})

    def pull(self, body, headers):
        form = dict(urllib.parse.parse_qsl(body.decode()))
        self.pulls.append((form, headers))
        key = form["uuid"], form["type"]
        self.asked[key] += 1
        if self.asked[key] <= self.polls or key not in self.results:
            return 400, {}, {"message": f"Not found scores for {key[0]}"}
        return 200, {}, self.results[key]

    def ping(self, body, headers):  # noqa: ARG002
        return 200, {}, {"message": "Ping request received"}

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def redness(media):
    """Exact mean of the red channel, as float32 prints."""
    red = media[..., 0] if media.ndim == 4 else media[:, 0]
    sums = red.reshape(len(red), -1).astype(np.int64).sum(1)
    return [float(np.float32(total / (255 * red[0].size))) for total in sums]
