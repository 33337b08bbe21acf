"""Real services in processes of their own, and a real redis-server with nothing on disk. Traffic stays on 127.0.0.1."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
TOKEN = "a token of the tests"
START = "import sys; from sanarl.cli import main; sys.argv[0] = 'sanarl'; main()"


PICKSCORE = """
[[reward_args]]
reward_type = "SCORERS:redness"
name = "pickscore"
device = "cpu"
[[reward_args]]
reward_type = "SCORERS:gen_eval"
device = "cpu"
"""


class Service:
    """`sanarl reward serve` as a process. What it says lies in ``log``."""

    def __init__(self, folder, name, toml, port=0, token=TOKEN):
        self.file, self.log = folder / f"{name}.toml", folder / f"{name}.log"
        self.file.write_text(toml, encoding="utf-8")
        self.token, self.port = token, port
        self.start()

    def start(self):
        self.start_of_log = self.log.stat().st_size if self.log.exists() else 0
        env = {**os.environ, "REMOTE_REWARD_TOKEN": self.token}
        command = [sys.executable, "-c", START, "reward", "serve", "--config", str(self.file), "--port", str(self.port)]
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, env=env, stderr=log, stdout=log)

    @property
    def lines(self):
        """What it said since it was last started."""
        return self.log.read_bytes()[self.start_of_log :].decode()

    def said(self, pattern, seconds=60):
        """Wait until it says something."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.lines)) is None:
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < end, self.lines
            time.sleep(0.02)
        return found

    def ready(self):
        """Wait until it is ready, and learn its port."""
        self.port = int(self.said(r"listening on \S+ port (\d+)")[1])
        self.said("ready: ")
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self, number=signal.SIGTERM, seconds=30):
        """Send a signal and give the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    # ---- talking to it, with nothing of our client

    def get(self, path):
        return self.ask(urllib.request.Request(self.url + path))

    def post(self, name, body=b"", headers=None, token=None, **form):
        data = urllib.parse.urlencode(form).encode() if form else body
        given = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        return self.ask(urllib.request.Request(f"{self.url}/api/reward/{name}", data, given, method="POST"))

    def ask(self, request):
        with contextlib.ExitStack() as stack:
            try:
                answer = stack.enter_context(urllib.request.urlopen(request, timeout=30))
            except urllib.error.HTTPError as error:
                answer = stack.enter_context(error)
            text = answer.read().decode()
            kind = answer.headers.get("Content-Type", "")
            return (
                answer.status,
                json.loads(text) if "json" in kind else text,
                {key.lower(): value for key, value in answer.headers.items()},
            )

    def result(self, body, reward="moody", seconds=30):
        """Send a request and wait for its result."""
        status, answer, _ = self.post("enqueue", body)
        assert status == 200, answer
        return self.pulled(answer["uuid"], reward, seconds)

    def pulled(self, uuid, reward="moody", seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status, answer, _ = self.post("pull", uuid=uuid, type=reward, wait=5)
            if status != 400:
                return answer
        raise AssertionError(f"no result within {seconds} s: {answer}")

    def say_healthy(self, seconds=30):
        end = time.monotonic() + seconds
        while (found := self.get("/healthz"))[0] != 200:
            assert time.monotonic() < end, found
            time.sleep(0.05)


def request(prompts=("a", "b"), media=None, **fields):
    """Bytes of a request, made by hand as the page says."""
    import io

    media = pictures(len(prompts)) if media is None else media
    head = {"prompts": list(prompts), "reward_fn": {"moody": 1.0}, "media_type": "image", **fields}
    file = io.BytesIO()
    np.save(file, media, allow_pickle=False)
    return json.dumps(head).encode() + b"\n" + file.getvalue()


def pictures(count, size=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def make_request():
    """A function that gives the bytes of a request."""
    return request


@pytest.fixture(scope="session")
def make_pictures():
    """A function that gives random pictures (B, H, W, 3) uint8."""
    return pictures


def toml(rewards=("moody",), decode="", head="", after="", **service):
    """A service's file."""
    lines = ['host = "127.0.0.1"', head]
    for name in rewards:
        target = f"{HERE / 'scorers.py'}:{name}" if name in ("moody", "redness", "Heavy") else name
        lines += ["[[reward_args]]", f'reward_type = "{target}"', 'device = "cpu"']
    lines.append(after.replace("SCORERS", str(HERE / "scorers.py")))
    if decode:
        lines += ["[decode_args]", decode]
    settings = {"drain_s": 5.0, "queue_size": 8, **service}
    return "\n".join([*lines, "[service]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())])


@pytest.fixture(scope="session")
def make_service(tmp_path_factory):
    """A function that starts a service; all are killed in the end."""
    folder = tmp_path_factory.mktemp("services")
    made = []

    def make(rewards=("moody",), port=0, token=TOKEN, ready=True, **options):
        one = Service(folder, f"service-{len(made)}", toml(rewards, **options), port, token)
        made.append(one)
        return one.ready() if ready else one

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="session")
def service(make_service):
    """One service for every test that leaves it whole: moody, gen_eval, and redness under the name pickscore."""
    return make_service(after=PICKSCORE, score_s=2.0, health_s=1.0, body_s=1.0, max_request_mb=20)


class RedisServer:
    """redis-server on a free port, with nothing on disk."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self.folder), "--daemonize", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.01)
        raise AssertionError("redis-server does not listen")

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def head(self):
        return f'redis_host = "127.0.0.1"\nredis_port = {self.port}'


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A running redis-server; the test set-up installs it."""
    if shutil.which("redis-server") is None:
        pytest.fail(
            "redis-server is not installed; scripts/setup.sh .venv dev installs it, or: apt-get install redis-server"
        )
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()
