"""What a reward service costs over calling the scorer: image batches as training sends them, from several clients.

    python benchmarks/reward_service.py [--requests 20] [--clients 1 2 4] [--large 1000] [--write]

A service is started on this machine with two scorers: one that takes a second a request, as a model on a GPU would
without using the CPU, and one that takes no time. In the same run the slow one is called directly, on pictures that
are already tensors. Overhead is the time between a busy service's answers over the time of a direct call. A client
sends its next request when it has its scores: with one client the service idles while the next request comes, with
two it need not. A trainer keeps several requests on their way; its overhead is the time from the first request to the
last score over as many direct calls, so that the first request's travel and the last answer's are in it. Pictures are
bytes already, which a GPU makes of them in training. The quick scorer takes --large requests of the same size while
the memory of every process is watched; more than a tenth of growth after the first twentieth is a failure. --write
keeps the figures.
"""

import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import torch

from sanarl.rewards import bench
from sanarl.rewards.exchange import Addresses
from sanarl.rewards.mix import Mix
from sanarl.rewards.remote import CONCURRENT

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "numpy", "fastapi", "uvicorn", "httptools", "httpx")
IMAGES, SIZE = 24, 1024
SCORER_S = 1.0
WANTED_OVERHEAD = 0.05
TOML = f"""
host = "127.0.0.1"
port = 0
[[reward_args]]
reward_type = "{Path(__file__).resolve()}:patient"
device = "cpu"
[[reward_args]]
reward_type = "{Path(__file__).resolve()}:quick"
device = "cpu"
"""


def patient(media, prompts, metadata):  # noqa: ARG001
    """Waits as for a GPU."""
    time.sleep(SCORER_S)
    return media[:, 0, 0, 0, 0].clone()


def quick(media, prompts, metadata):  # noqa: ARG001
    """Takes no time."""
    return media[:, 0, 0, 0, 0].clone()


def directly(calls: int = 5) -> float:
    """Seconds of a direct call, as sanarl scores in its own process."""
    media = torch.rand(IMAGES, 1, 3, SIZE, SIZE)
    mix = Mix({"patient": (1.0, patient)})
    started = time.perf_counter()
    for _ in range(calls):
        mix(media, ["p"] * IMAGES, [{}] * IMAGES)
    return (time.perf_counter() - started) / calls


class Watch(threading.Thread):
    """Looks at the memory of a service's processes again and again."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.most, self.over = pid, resident(pid), threading.Event()

    def run(self) -> None:
        """Keep the most of every process."""
        while not self.over.wait(2):
            self.most = {name: max(size, self.most[name]) for name, size in resident(self.pid).items()}


def resident(pid: int) -> dict[str, int]:
    """Megabytes of the service's process and of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = {name: int(Path(f"/proc/{name}/statm").read_text().split()[1]) for name in (str(pid), *children)}
    megabytes = [round(count * os.sysconf("SC_PAGE_SIZE") / 1e6) for count in pages.values()]
    return {"http": megabytes[0], **{f"scorer {n}": size for n, size in enumerate(megabytes[1:])}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        toml, log = Path(folder) / "rewards.toml", Path(folder) / "log"
        toml.write_text(TOML)
        with log.open("w") as said:
            command = [sys.executable, "-m", "sanarl", "reward", "serve", "--config", str(toml)]
            service = subprocess.Popen(command, stderr=said, env={**os.environ, "REMOTE_REWARD_TOKEN": "bench"})
        while "ready: " not in log.read_text():
            assert service.poll() is None, log.read_text()
            time.sleep(0.1)
        base = f"http://127.0.0.1:{re.search(r'port ([0-9]+)', log.read_text())[1]}/api/reward"
        where = Addresses((f"{base}/enqueue",), (f"{base}/pull",), "bench")
        try:
            bench.run(where, "patient", "p", IMAGES, SIZE, 1, 1)
            direct = directly()
            print(f"direct call: {direct:.3f} s")
            loads = []
            for clients in asked.clients:
                load = bench.run(where, "patient", "p", IMAGES, SIZE, asked.requests, clients)
                overhead = load.busy_s / direct - 1
                loads.append((load, overhead))
                print("\n".join([*load.lines(), f"overhead over a direct call: {100 * overhead:.1f} %"]))
            trainer = bench.run(where, "patient", "p", IMAGES, SIZE, asked.requests, CONCURRENT)
            trained = trainer.seconds / (asked.requests * direct) - 1
            print(f"a trainer with {asked.requests} requests: overhead {100 * trained:.1f} %")
            bench.run(where, "quick", "p", IMAGES, SIZE, max(asked.large // 20, 8), 4)
            before, watch = resident(service.pid), Watch(service.pid)
            watch.start()
            large = bench.run(where, "quick", "p", IMAGES, SIZE, asked.large, 4)
            watch.over.set()
            after = resident(service.pid)
            print("\n".join(large.lines()))
            print(f"memory in MB before {before}, most {watch.most} and after {after}")
        finally:
            service.send_signal(signal.SIGTERM)
            code = service.wait(90)
    if any(after[name] > 1.1 * before[name] + 5 for name in before):
        sys.exit("memory grew")
    if not asked.write:
        return
    today = datetime.date.today().isoformat()
    figures = {
        "date": today,
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "request": {"images": IMAGES, "size": SIZE, "scorer_s": SCORER_S},
        "direct_s": round(direct, 4),
        "wanted_overhead": WANTED_OVERHEAD,
        "loads": [
            {
                "clients": load.clients,
                "requests": len(load.latencies),
                "requests_per_s": round(load.requests_per_s, 4),
                "between_answers_s": round(load.busy_s, 4),
                "mb_per_s": round(load.mb_per_s, 1),
                "p50_s": round(load.percentile(0.5), 3),
                "p95_s": round(load.percentile(0.95), 3),
                "overhead": round(overhead, 4),
            }
            for load, overhead in loads
        ],
        "trainer": {"requests": asked.requests, "overhead": round(trained, 4)},
        "large": {
            "requests": asked.large,
            "clients": 4,
            "requests_per_s": round(large.requests_per_s, 2),
            "mb_per_s": round(large.mb_per_s, 1),
        },
        "memory_mb": {"before": before, "most": watch.most, "after": after},
        "exit_code": code,
    }
    path = RESULTS / f"reward_service_cpu_{today}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
