"""Folders as runs leave them, written by hand, and a browser."""

import json
import math
from pathlib import Path

import pytest
from PIL import Image

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROMPTS = ["a red circle", "<script>window.ran = 1</script>", "</script><img src=x onerror='window.ran = 1'>", "vier"]


def lines(found):
    return "".join(json.dumps(line) + "\n" for line in found)


def step_line(step, seed=0):
    """Numbers that look like a run's."""
    wave = math.sin(0.7 * step + seed)
    line = {
        "step": step,
        "loss": 3 + 0.2 * wave,
        "grad_norm": 0.1 * math.exp(wave),
        "lr": 1e-3,
        "reward/mean": 0.4 + 0.01 * step + 0.05 * wave,
        "reward/max": 0.7 + 0.01 * step,
        "reward/min": 0.1 + 0.01 * step,
        "reward/range": 0.6,
        "reward/shapes": 0.4 + 0.01 * step,
        "reward_std_mean": 0.2,
        "zero_std_ratio": 0.125 * (step % 3),
        "kl_div_loss": 1e-5 * step,
        "media/diversity": 0.1,
        "guards/sharpness": 1.0 - 0.01 * step,
        "time/step": 3.0,
        "time/rollout": 1.5,
        "time/train": 1.25,
        "skipped_steps": 0.0,
    }
    return line | (
        {"eval/reward": 0.4 + 0.02 * step, "eval/shapes": 0.4, "time/evaluate": 2.0} if step % 5 == 0 else {}
    )


def reward_line(step, of, prompts, new):
    means = [0.3 + 0.01 * step + 0.1 * i for i in range(len(prompts))]
    line = {"step": step, "of": of, "prompt": prompts, "size": [8] * len(prompts), "mean": means}
    return line | {"std": [0.2] * len(prompts)} | ({"new": new} if new else {})


def write_clip(path, frames, width=64):
    """A clip of 8 frames a second, 64 high, that grows from black to white."""
    import torch

    from sanarl.rollout.clips import write_mp4

    write_mp4(torch.linspace(0, 1, frames)[:, None, None, None].expand(frames, 3, 64, width), path, 8)


def write_samples(folder, step, prompts=PROMPTS, size=64):
    place = folder / "samples" / f"step_{step:06d}"
    place.mkdir(parents=True)
    listed = []
    for number, prompt in enumerate(prompts):
        name = f"{number:03d}_x.png"
        Image.new("RGB", (size, size), (10 * step % 256, 60 * number % 256, 90)).save(place / name)
        listed.append({"file": name, "prompt": prompt, "reward": 0.25 * number})
    (place / "index.json").write_text(json.dumps({"fps": 16.0, "samples": listed}))


def write_run(folder, steps=20, seed=0, config=None, ended="finished", with_samples=True):
    """A run of ``steps`` steps, evaluated every five."""
    folder.mkdir(parents=True)
    metrics = [step_line(step, seed) for step in range(steps + 1)]
    for name in [name for name in metrics[0] if name not in ("step", "eval/reward", "eval/shapes", "time/evaluate")]:
        del metrics[0][name]
    (folder / "metrics.jsonl").write_text(lines(metrics))
    rewards = [reward_line(0, "eval", [0, 1, 2, 3], {str(i): text for i, text in enumerate(PROMPTS)})]
    for step in range(1, steps + 1):
        rewards.append(reward_line(step, "train", [step % 4, 4], {"4": "a green one"} if step == 1 else None))
        if step % 5 == 0:
            rewards.append(reward_line(step, "eval", [0, 1, 2, 3], None))
    (folder / "rewards.jsonl").write_text(lines(rewards))
    values = {"policy": {"model_name_or_path": "tiny-image"}, "train": {"optm_lr": 1e-3, "max_num_steps": steps}}
    values["train"] |= {"train_policy": {"type": "grpo", "trainer_type": "diffusion_nft"}} | (config or {})
    (folder / "config.json").write_text(json.dumps({"identity": "abc", "config": values}))
    start = {"time": "2026-11-30T10:00:00Z", "event": "start", "step": 0, "total": steps, "device": "1 x cpu"}
    events = [start | {"packages": {"torch": "2.14.1"}, "command": ["sanarl", "train", "--config", "x"]}]
    if ended:
        events.append({"time": "2026-11-30T10:10:00Z", "event": "end", "step": steps, "why": ended})
    (folder / "events.jsonl").write_text(lines(events))
    (folder / "log.txt").write_text("2026-11-30 10:00:00 run folder: x\n2026-11-30 10:10:00 the end <b>\n")
    if with_samples:
        for step in range(0, steps + 1, 5):
            write_samples(folder, step)
    return folder


@pytest.fixture
def a_run(tmp_path):
    """A finished run of 20 steps."""
    return write_run(tmp_path / "runs" / "first")


@pytest.fixture(scope="session")
def make_folder():
    """See ``write_run``."""
    return write_run


@pytest.fixture(scope="session")
def make_clip():
    """See ``write_clip``."""
    return write_clip


@pytest.fixture(scope="session")
def make_samples():
    """See ``write_samples``."""
    return write_samples


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium without a window, with a profile of its own that is gone afterwards.

    For a module, not longer: Playwright keeps an event loop running in this thread, beside which no other can run.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        made = started.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield made
        made.close()


@pytest.fixture
def visit(browser):
    """A function that opens a file or address and gives the page; no request may leave, and nothing may go wrong."""
    contexts, problems = [], []

    def go(where, width=1280, height=900, scheme="light", **options):
        address = Path(where).absolute().as_uri() if not str(where).startswith("http") else where
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        own = address.rpartition("/")[0]
        page.on("request", lambda asked: None if _is_own(asked.url, own) else problems.append(f"asked {asked.url}"))
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert problems == []


def _is_own(url, own):
    return url.startswith((own, "data:"))
