"""How long until the command line answers: `sanarl --help`, and commands that need no torch.

    python benchmarks/cli_start.py [--rounds 20] [--write]

Each command runs in a process of its own, in turns; the first round warms the disk's cache and does not count. Printed
are the median and the fastest of wall-clock seconds, and the median of the CPU seconds that the process took, which
other work on the machine moves less. --write keeps the figures under benchmarks/results.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MOST = 0.5
COMMANDS = {
    "help": ["--help"],
    "train help": ["train", "--help"],
    "presets list": ["presets", "list"],
    "validate": ["validate", "tiny-image-nft"],
}


def measured(arguments):
    """Wall-clock and CPU seconds of one command."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "sanarl", *arguments], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    seconds = {name: [] for name in COMMANDS}
    for number in range(asked.rounds + 1):
        for name, arguments in COMMANDS.items():
            found = measured(arguments)
            if number:
                seconds[name].append(found)
    commands = {}
    for name, found in seconds.items():
        walls, processor = zip(*found, strict=True)
        commands[name] = {
            "wall_median": round(statistics.median(walls), 3),
            "wall_fastest": round(min(walls), 3),
            "cpu_median": round(statistics.median(processor), 3),
        }
        print(name, commands[name])
    document = {
        "benchmark": "cli_start",
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "python": platform.python_version(),
        "rounds": asked.rounds,
        "accepted": f"the fastest `sanarl --help` under {MOST} s",
        "commands": commands,
    }
    if asked.write:
        path = RESULTS / f"cli_start_cpu_{document['date']}.json"
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if commands["help"]["wall_fastest"] < MOST else 1


if __name__ == "__main__":
    sys.exit(main())
