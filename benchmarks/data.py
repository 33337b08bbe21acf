"""How fast data is prepared and loaded here, against PIL and PyAV doing the same work by themselves.

    python benchmarks/data.py [--pictures 64] [--clips 8] [--size 1024] [--workers 1 2] [--rounds 5] [--write]

Sources are made here: JPEG pictures of 1600 x 1200 pixels of smooth noise, H.264 clips of 3 s of 1280 x 720 pixels at
30 fps. Reported, each as samples a second over the whole set, after one pass to warm the disk's cache:
- prepare: `sanarl dataset prepare` from the sources to crops of --size, and clips of 41 frames at 16 fps of 480 x 832;
- decode: one thread of PIL (open, convert, crop and scale by PIL's own resize, to an array) or PyAV (decode the same
  stretch of the video, the same frames to RGB and scaled by PIL), and nothing else;
- loader: the loop's own loader, which decodes, checks every item and hands over a step of 8-bit media, by number of
  workers.
The shares compare seconds of processor time a sample, so that what else the machine does counts less. Decoding alone
and the loaders take turns, --rounds times; each figure is the best of its rounds, as everything else only takes time
away.
"""

import argparse
import datetime
import json
import os
import platform
import tempfile
import time
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageFilter

from sanarl.data.folder import MediaFolder, View
from sanarl.data.loading import Loader
from sanarl.data.module import Items, checked_sft
from sanarl.data.prepare import Settings, prepare
from sanarl.data.video import Clip

RESULTS = Path(__file__).parent / "results"
CLIP, CLIP_SIZE = Clip(41, 16.0), (480, 832)
STEP = 4  # items a step


def make_pictures(folder: Path, count: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (75, 100, 3), np.uint8))
        picture = coarse.resize((1600, 1200), Image.Resampling.BICUBIC).filter(ImageFilter.DETAIL)
        picture.save(folder / f"{i:04}.jpg", quality=92)
        (folder / f"{i:04}.txt").write_text(f"noise {i}")


def make_clips(folder: Path, count: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (45, 90, 3), np.uint8)).resize((1440, 720))
        whole = np.asarray(coarse)
        with av.open(str(folder / f"{i:04}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=30, options={"preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
            for k in range(90):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(whole[:, k : k + 1280]), "rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        (folder / f"{i:04}.txt").write_text(f"noise {i}")


def pil_alone(folder: Path, size: tuple[int, int]) -> int:
    """Every picture, cover-cropped to ``size`` by PIL."""
    files = sorted(folder.glob("*.jpg"))
    for file in files:
        with Image.open(file) as image:
            rgb = image.convert("RGB")
        np.asarray(cover(rgb, size))
    return len(files)


def cover(rgb: Image.Image, size: tuple[int, int]) -> Image.Image:
    scale = max(size[0] / rgb.height, size[1] / rgb.width)
    w, h = size[1] / scale, size[0] / scale
    left, upper = (rgb.width - w) / 2, (rgb.height - h) / 2
    return rgb.resize((size[1], size[0]), Image.Resampling.BICUBIC, (left, upper, left + w, upper + h))


def av_alone(folder: Path, size: tuple[int, int]) -> int:
    """The frames of every clip that are on screen at k / fps, cover-cropped to ``size``."""
    files = sorted(folder.glob("*.mp4"))
    for file in files:
        with av.open(str(file)) as container:
            wanted = [Fraction(k, int(CLIP.fps)) for k in range(CLIP.frames)]
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            held = None
            for frame in container.decode(stream):
                while held is not None and wanted and wanted[0] < frame.pts * frame.time_base - Fraction(1, 1000):
                    np.asarray(cover(Image.fromarray(held.to_ndarray(format="rgb24")), size))
                    wanted.pop(0)
                held = frame
                if not wanted:
                    break
    return len(files)


def load_all(folder: Path, view: View, workers: int) -> int:
    """One epoch through the loop's loader."""
    found = MediaFolder(folder, view)
    items = Items(found, "benchmark", None, lambda item, i: checked_sft(item, i, "benchmark", view.sizes))
    steps = len(items) // STEP
    with Loader(items, 0, True, workers, 1, STEP) as loader:
        for step in range(steps):
            assert len(loader.take(step * STEP, range(STEP))) == STEP
    return steps * STEP + (STEP if workers else 0)  # a step is read ahead


def rate(what, *arguments) -> tuple[float, float]:
    """Samples a second, and a second of processor time."""
    started, used = time.perf_counter(), time.process_time()
    count = what(*arguments)
    return count / (time.perf_counter() - started), count / (time.process_time() - used)


def measure(work: Path, args) -> dict[str, float]:
    size = (args.size, args.size)
    make_pictures(work / "pictures", args.pictures)
    make_clips(work / "clips", args.clips)
    results: dict[str, float] = {}
    for kind, alone, view, settings in (
        ("pictures", pil_alone, View((size,)), Settings(sizes=(size,))),
        ("clips", av_alone, View((CLIP_SIZE,), CLIP), Settings(sizes=(CLIP_SIZE,), clip=CLIP)),
    ):
        folder = work / kind
        shape = size if kind == "pictures" else CLIP_SIZE
        alone(folder, shape)  # the disk's cache
        calls = {f"{kind}/decode alone": (alone, folder, shape)}
        calls |= {f"{kind}/loader, {n} workers": (load_all, folder, view, n) for n in args.workers}
        rounds = [{name: rate(*call) for name, call in calls.items()} for _ in range(args.rounds)]
        best = {name: [max(figures) for figures in zip(*(one[name] for one in rounds), strict=True)] for name in calls}
        for name, (per_second, per_cpu_second) in best.items():
            results[name] = per_second
            if "loader" in name:
                results[f"{name}, share of decode alone"] = per_cpu_second / best[f"{kind}/decode alone"][1]
        out = work / f"{kind}_out"
        results[f"{kind}/prepare"], _ = rate(lambda f=folder, o=out, s=settings: prepare(f, o, s).made)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as work:
        os.environ["SANARL_HOME"] = f"{work}/home"
        results = measure(Path(work), args)
    for name, value in results.items():
        print(f"{name:60} {value:8.2f}")
    if args.write:
        page = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "load": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
            "versions": {name: version(name) for name in ("av", "pillow", "torch", "numpy")},
            "arguments": {k: v for k, v in vars(args).items() if k != "write"},
            "per_second": results,
        }
        file = RESULTS / f"data_{platform.machine()}_{page['date']}.json"
        file.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
