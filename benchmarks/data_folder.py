"""How long a large folder takes to be scanned and checked, the first time and again, and what memory that needs.

    python benchmarks/data_folder.py [--pairs 10000 100000] [--write]

Folders are made here: JPEG pictures of 64 x 64 pixels with a .txt each, 1,000 pairs a folder. Every phase runs in a
process of its own, so that its peak of memory is its own; what importing takes is subtracted.
- scan: pair files with captions;
- check: what `sanarl dataset check` does: decode every picture, count, look for copies;
- check again: the same, remembering what was decoded;
- prepare, again: `sanarl dataset prepare` to 32 x 32 pixels, and the same line once more;
- check prepared, again: `check` of that folder against its manifest.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PHASES = ("scan", "check", "check again", "prepare", "prepare again", "check prepared", "check prepared again")


def make(folder: Path, pairs: int) -> None:
    import io

    from PIL import Image

    for number in range(pairs):
        if number % 1000 == 0:
            (folder / f"{number // 1000:03}").mkdir(parents=True)
        box = io.BytesIO()
        Image.new("RGB", (64, 64), (number % 251, number // 251 % 251, number // 63001)).save(box, "JPEG")
        place = folder / f"{number // 1000:03}" / f"{number:06}"
        place.with_suffix(".jpg").write_bytes(box.getvalue())
        place.with_suffix(".txt").write_text(f"colour number {number}, one of many")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(phase: str, work: Path) -> None:
    """One phase in this process: prints its seconds, and MiB beyond what importing took."""
    from sanarl.data.check import check
    from sanarl.data.prepare import Settings, prepare
    from sanarl.data.scan import scan

    before, started, used = peak_mib(), time.perf_counter(), time.process_time()
    if phase == "scan":
        count = len(scan(work / "src").rows)
    elif phase.startswith("prepare"):
        count = prepare(work / "src", work / "out", Settings(sizes=((32, 32),))).report["kept"]
    else:
        (found,) = check(work / ("out" if "prepared" in phase else "src"))
        assert not found.faults, found.faults[:3]
        count = found.good
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    print(json.dumps({"pairs": count, "s": seconds, "cpu_s": cpu, "mib": peak_mib() - before}))


def measure(pairs: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as work:
        make(Path(work) / "src", pairs)
        found = {}
        for phase in PHASES:
            command = [sys.executable, __file__, "--phase", phase, "--work", work]
            environment = {**os.environ, "SANARL_HOME": f"{work}/home"}
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            found[phase] = json.loads(done.stdout)
            assert found[phase].pop("pairs") == pairs
            figures = f"{found[phase]['s']:8.2f} s {found[phase]['cpu_s']:8.2f} s cpu {found[phase]['mib']:8.1f} MiB"
            print(f"{pairs:8} {phase:22} {figures}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase:
        run(args.phase, args.work)
        return
    load = os.getloadavg()[0]
    found = {str(pairs): measure(pairs) for pairs in args.pairs}
    if args.write:
        page = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "load": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
            "versions": {name: version(name) for name in ("pillow", "torch", "numpy")},
            "pairs": found,
        }
        file = RESULTS / f"data_folder_{platform.machine()}_{page['date']}.json"
        file.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
