"""The first commands of docs/quickstart.md end to end: from a clone to a report page.

    python benchmarks/quickstart.py                       # a fresh clone and environment; writes benchmarks/results
    python benchmarks/quickstart.py --here --steps 2 --out result.json   # this environment, few steps: what CI runs

The commands are read from the page and run by one shell, line by line, each timed.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALL = ("python3 -m venv", ". .venv", "pip install")
LIMIT_MINUTES = 15


def commands() -> list[str]:
    """The first shell block of the page."""
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    block = re.search(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None, "docs/quickstart.md has no shell block"
    return block[1].splitlines()


def run(lines: list[str], folder: Path, environment: dict[str, str]) -> list[float]:
    """Seconds of every line, all in one shell; ends with the shell's code when one fails."""
    script = "set -e\n" + "".join(f"{line}\ndate +%s.%N >> times\n" for line in lines)
    started = time.time()
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=False)
    stamps = [float(line) for line in (folder / "times").read_text().split()]
    if done.returncode:
        print(f"failed: {lines[len(stamps)]}", file=sys.stderr)
        sys.exit(done.returncode)
    return [stamp - before for stamp, before in zip(stamps, [started, *stamps], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="use this environment and these sources: install nothing")
    parser.add_argument("--steps", type=int, help="train only this many steps")
    parser.add_argument("--out", type=Path, help="where the figures go; default: benchmarks/results")
    given = parser.parse_args()
    lines, environment = commands(), dict(os.environ)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sanarl"
        if given.here:
            folder.mkdir()
            lines = [line for line in lines if not line.startswith(INSTALL)]
            bin_ = folder / "bin"
            bin_.mkdir()
            (bin_ / "sanarl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sanarl "$@"\n')
            (bin_ / "sanarl").chmod(0o755)
            environment |= {"PATH": f"{bin_}:{environment['PATH']}", "PYTHONPATH": str(ROOT)}
        else:
            environment.pop("PYTHONPATH", None)
            environment.pop("VIRTUAL_ENV", None)
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        few = f" --set train.max_num_steps={given.steps} --set validation.num_prompts=4" if given.steps else ""
        timed = [line + few if line.startswith("sanarl train") else line for line in lines]
        environment["OMP_NUM_THREADS"] = environment.get("OMP_NUM_THREADS", "1")
        seconds = run(timed, folder, environment)
        (report,) = folder.glob("outputs/tiny-image-nft/*/report.html")
        metrics = [json.loads(line) for line in (report.parent / "metrics.jsonl").read_text().splitlines()]
        rewards = [line["eval/reward"] for line in metrics if "eval/reward" in line]
        result = {
            "date": date.today().isoformat(),
            "machine": {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()},
            "fresh_environment": not given.here,
            "steps": metrics[-1]["step"],
            "seconds": {line: round(value, 1) for line, value in zip(timed, seconds, strict=True)},
            "minutes": round(sum(seconds) / 60, 2),
            "limit_minutes": LIMIT_MINUTES,
            "report_bytes": report.stat().st_size,
            "held_out_reward": [rewards[0], rewards[-1]],
            "load_average": os.getloadavg()[1],
        }
    out = given.out or ROOT / "benchmarks" / "results" / f"quickstart_cpu_{result['date']}.json"
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    if not given.steps and result["minutes"] > LIMIT_MINUTES:
        sys.exit(f"{result['minutes']} minutes are more than {LIMIT_MINUTES}")


if __name__ == "__main__":
    main()
