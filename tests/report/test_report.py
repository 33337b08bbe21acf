"""Reading what runs leave, thinning it, and the document and page that come of it."""

import http.client
import json
import math
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading

import pytest
from PIL import Image
from playwright.sync_api import expect

from sanarl import cli
from sanarl.errors import UserError
from sanarl.report import document, films, names, page, pictures, prompts, series
from sanarl.report.reading import read, resolve
from sanarl.report.serve import server


def command(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sanarl", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code or 0, *capsys.readouterr()


def data_of(path):
    """The document inside a page."""
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)[1])


# ---- reading


def test_a_folder_of_runs_stands_for_its_newest(a_run, make_folder):
    newest = make_folder(a_run.parent / "another")
    os.utime(a_run / "metrics.jsonl", (1, 1))
    os.utime(a_run / "config.json", (1, 1))
    assert resolve(a_run.parent) == (newest, f"{a_run.parent} holds 2 run(s); taking the newest, another")
    assert resolve(a_run) == (a_run, None)


@pytest.mark.parametrize(
    ("damage", "steps", "note"),
    [
        ('{"step": 21, "loss": 1.0', 20, "1 line(s) are damaged"),
        ("\x00\x00\x00\n[]\n7\nnull\n", 20, "4 line(s) are damaged"),
        ('{"step": 20, "loss": 1.0}\n', 20, "1 step(s) stand there twice"),
        ('{"step": 21, "loss": NaN, "lr": Infinity, "x": null, "y": "z", "w": [1]}\n', 21, None),
        ('{"step": "21"}\n{"step": -1}\n{"loss": 1}\n{"step": true}\n', 20, None),
        ("\n\n   \n", 20, None),
        ("[" * 100_000, 20, "1 line(s) are damaged"),
    ],
)
def test_damaged_metrics_are_read_as_far_as_they_go(a_run, damage, steps, note):
    with open(a_run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(damage)
    run = read(a_run)
    assert run.step == steps
    assert [line["step"] for line in run.lines] == list(range(steps + 1))
    assert len(run.notes) == (note is not None)
    assert note is None or note in run.notes[0]
    page.page(document.document([a_run]))


def test_of_a_step_that_stands_there_twice_the_later_line_counts(a_run):
    with open(a_run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 3, "loss": 7.0}\n')
    assert [line for line in read(a_run).lines if line["step"] == 3] == [{"step": 3, "loss": 7.0}]


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "rewards.jsonl", "events.jsonl", "config.json", "log.txt", "samples"]
)
@pytest.mark.parametrize("how", ["gone", "binary"])
def test_any_file_may_be_missing_or_rubbish(a_run, name, how):
    path = a_run / name
    if path.is_dir():
        for index in path.glob("*/index.json"):
            index.unlink() if how == "gone" else index.write_bytes(b"\xff\x00[")
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"\xff\xfe\x00{]")
    (a_run / "config.json").exists() or (a_run / "metrics.jsonl").exists()
    found = document.document([a_run])
    assert page.page(found).startswith("<!DOCTYPE html>")
    assert (found["runs"][0]["gallery"] is None) is (name == "samples")


@pytest.mark.parametrize(
    "sample", [{}, {"file": 7, "prompt": "a"}, {"file": "../../log.txt", "prompt": "a"}, {"file": "x"}]
)
def test_samples_outside_the_folder_and_odd_indices_show_nothing(a_run, sample):
    for index in (a_run / "samples").glob("*/index.json"):
        index.write_text(json.dumps({"samples": [sample, 3]}))
    gallery = document.document([a_run])["runs"][0]["gallery"]
    assert {data for row in gallery["pictures"] for data in row} == {None}


@pytest.mark.parametrize(
    ("event", "state"),
    [
        ({"event": "end", "step": 20, "why": "finished"}, "finished"),
        ({"event": "end", "step": 7, "why": "SIGTERM"}, "stopped"),
        ({"event": "start", "step": 7, "total": 40}, "killed"),
    ],
)
def test_how_a_run_ended(a_run, event, state):
    with open(a_run / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    found, words = read(a_run).state()
    assert found == state
    assert ("SIGTERM" in words) is (state == "stopped")


def test_a_locked_folder_is_a_running_job_and_is_not_disturbed(a_run):
    # Reference: the kernel's lock, held by another process as a run holds it.
    code = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2); print(1, flush=True); input()"
    lock = [sys.executable, "-c", code, str(a_run / ".lock")]
    with subprocess.Popen(lock, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        holder.stdout.readline()
        assert read(a_run).state()[0] == "running"
        holder.communicate("\n")
    assert read(a_run).state()[0] == "finished"


# ---- curves


def test_thinning_keeps_ends_extremes_and_gaps():
    # Reference: the whole curve; every kept point is one of it.
    y = [math.sin(i / 100) for i in range(10_000)]
    y[5_000], y[7_321], y[123] = 40.0, -30.0, None
    curve = {"x": list(range(10_000)), "y": y}
    thin = series.thin(curve, 600)
    assert 300 < len(thin["x"]) <= 603
    assert all(curve["y"][x] == value for x, value in zip(thin["x"], thin["y"], strict=True))
    assert thin["x"] == sorted(set(thin["x"]))
    assert {0, 9_999, 5_000, 7_321, 123} <= set(thin["x"])
    assert series.thin(curve, 10_000) is curve


def test_the_spread_of_groups_by_hand():
    # Reference: quantiles of 0, 1, ..., 10 are 1 and 9; of means 1 and 3 with sizes 1 and 3, mean 2.5, error 1.
    train = {"step": 3, "of": "train", "mean": list(range(11)), "size": [2] * 11}
    held_out = {"step": 5, "of": "eval", "mean": [1.0, 3.0], "size": [1, 3]}
    assert series.spread_of_prompts([train, held_out], 9) == {"x": [3], "lo": [1.0], "hi": [9.0]}
    assert series.error_of_evaluations([train, held_out]) == {"x": [5], "lo": [0.5], "hi": [4.5]}
    assert series.spread_of_prompts([{"of": "train", "step": 1, "mean": "x"}, {"of": "train", "step": 1}], 9)["x"] == []


def test_rewards_of_prompts_by_hand():
    first = {"step": 0, "of": "eval", "prompt": [0, 1], "mean": [0.5, 0.25], "new": {"0": "a", "1": "b"}}
    second = {"step": 9, "of": "eval", "prompt": [1, 2], "mean": [0.75, float("nan")]}
    found = prompts.table([first, second], "eval")
    assert found == {
        "rows": [
            {"text": "a", "visits": 1, "x": [0], "y": [0.5]},
            {"text": "b", "visits": 2, "x": [0, 9], "y": [0.25, 0.75]},
        ],
        "count": 2,
    }
    many = [{"step": s, "of": "train", "prompt": list(range(500)), "mean": [i * s for i in range(500)]} for s in (0, 1)]
    found = prompts.table(many, "train")
    assert (len(found["rows"]), found["count"]) == (prompts.ROWS, 500)
    assert [row["y"][-1] for row in found["rows"]] == [*range(100), *range(400, 500)]


def test_every_metric_is_on_one_chart():
    found = ["loss", "eval/reward", "eval/x", "reward/x", "reward/max", "time/step", "time/x", "guards/a", "new", "a/b"]
    shown = [metric for _, _, charts in names.sections(found) for _, metrics in charts for metric in metrics]
    assert sorted(shown) == sorted(set(found) - {"reward/max"})


# ---- pages


@pytest.fixture
def long_run(tmp_path, make_folder):
    """10,000 steps, 48 prompts each of 2,000, 40 metrics, and an evaluation of 32 noisy pictures every 100 steps."""
    folder = make_folder(tmp_path / "long", steps=5)
    rng = random.Random(0)
    metrics, rewards, known = [], [], set()
    for step in range(1, 10_001):
        metrics.append({"step": step, "time/step": 1.0} | {f"metric/{i}": rng.random() for i in range(40)})
        drawn = [rng.randrange(2000) for _ in range(48)]
        line = {"step": step, "of": "train", "prompt": drawn, "size": [24] * 48, "mean": [rng.random() for _ in drawn]}
        rewards.append(
            line | {"std": [0.1] * 48, "new": {str(i): f"prompt {i} " + "x" * 300 for i in drawn if i not in known}}
        )
        known |= set(drawn)
    for name, found in (("metrics.jsonl", metrics), ("rewards.jsonl", rewards)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in found))
    return folder


@pytest.mark.slow
def test_a_long_run_stays_below_the_stated_size(long_run, make_samples):
    noise = long_run / "noise.png"
    Image.effect_noise((320, 320), 90).convert("RGB").save(noise)
    for step in range(100, 3_000, 100):
        make_samples(long_run, step, [f"prompt {i}" for i in range(32)], size=8)
        for file in (long_run / "samples" / f"step_{step:06d}").glob("*.png"):
            shutil.copy(noise, file)
    size = page.write([long_run], long_run / "report.html")
    assert 1e6 < size < document.PAGE_MB * 1e6
    found = data_of(long_run / "report.html")["runs"][0]
    assert max(len(curve["x"]) for curve in found["curves"].values()) <= document.POINTS + 3
    assert found["curves"]["metric/0"]["x"][-1] == 10_000
    assert len(found["gallery"]["steps"]) >= 2


def test_endless_texts_are_cut(a_run):
    # Reference: by hand: of 6 MB of a log its end, of every text 2000 letters; warnings before the end are not seen.
    log = f"2026-11-30 10:00:00 warning: early\n{'x' * 6_000_000}\n2026-11-30 10:00:01 warning: late {'y' * 9000}\n"
    (a_run / "log.txt").write_text(log)
    config = json.loads((a_run / "config.json").read_text())
    config["config"]["policy"]["model_name_or_path"] = "m" * 100_000
    (a_run / "config.json").write_text(json.dumps(config))
    index = a_run / "samples" / "step_000020" / "index.json"
    listed = json.loads(index.read_text())
    listed["samples"][0]["prompt"] = "p" * 100_000
    index.write_text(json.dumps(listed))
    assert page.write([a_run], a_run / "report.html") < 200_000
    found = data_of(a_run / "report.html")["runs"][0]
    assert [len(line) for line in found["warnings"]] == [2004]
    assert found["warnings"][0].startswith("2026-11-30 10:00:01 warning: late yyy")
    assert found["model"] == "m" * 2000 + " ..."
    assert found["gallery"]["prompts"][0] == "p" * 2000 + " ..."


def test_only_plain_files_are_written_over(a_run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"pipe: found no plain file; accepted: the name of a file"):
        page.write([a_run], pipe)
    assert pipe.is_fifo()


@pytest.mark.slow
def test_many_runs_stay_below_the_stated_size(long_run):
    size = page.write([long_run] * 4, long_run / "report.html")
    assert size < document.PAGE_MB * 1e6
    assert [run["name"] for run in data_of(long_run / "report.html")["runs"]][:2] == [
        "test_many_runs_stay_below_the_0/long",
        "test_many_runs_stay_below_the_0/long (2)",
    ]


def test_the_page_holds_everything_and_asks_for_nothing(a_run):
    page.write([a_run], a_run / "report.html")
    text = (a_run / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href)=[\"'](?!data:|#)[^\"']*", text) == []
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert text.count("<script") == 2  # none of a prompt's


def test_names_of_runs_are_text(make_folder, tmp_path):
    folder = make_folder(tmp_path / "<b>x", config={"output_dir": "</script>"})
    page.write([folder], tmp_path / "page.html")
    assert "<b>" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert data_of(tmp_path / "page.html")["runs"][0]["name"].endswith("<b>x")


def test_only_what_differs_is_listed(a_run, make_folder, tmp_path):
    other = make_folder(tmp_path / "other", config={"optm_lr": 2e-3, "new": [1, "é"]})
    rows = {row["name"]: row for row in document.document([a_run, other])["config"]["rows"]}
    assert rows["train.optm_lr"] == {"name": "train.optm_lr", "values": ["0.001", "0.002"], "differs": True}
    assert rows["train.new"]["values"] == ["", '[1, "é"]']
    assert rows["policy.model_name_or_path"]["differs"] is False


def test_a_clip_is_nine_of_its_frames(a_run, make_clip):
    place = a_run / "samples" / "step_000020"
    make_clip(place / "clip.mp4", 25, 96)
    (place / "index.json").write_text(json.dumps({"samples": [{"file": "clip.mp4", "prompt": "it gets light"}]}))
    found = pictures.gallery(a_run / "samples", 10**6, [])
    assert found["clips"] == {"frames": 9, "seconds": pytest.approx(25 / 8)}
    assert pictures.gallery(a_run / "samples" / "..", 10**6, []) is None
    # Reference: every third frame of a clip whose frame i is i / 24 bright, nine times 96 wide.
    strip = films.film(place / "clip.mp4", 256)
    assert strip.size == (9 * 96, 64)
    middles = [strip.getpixel((48 + 96 * i, 32))[0] / 255 for i in range(9)]
    assert middles == pytest.approx([i / 8 for i in range(9)], abs=0.03)
    assert films.film(place / "clip.mp4", 48).size == (9 * 48, 32)


def test_a_short_clip_repeats_frames_and_a_broken_one_is_missed(a_run, make_clip):
    place = a_run / "samples" / "step_000020"
    make_clip(place / "short.mp4", 3, 64)
    strip = films.film(place / "short.mp4", 64)
    # Reference: round(k 2 / 8) for k = 0 .. 8, by hand, with Python's halves to even.
    brightness = [strip.getpixel((32 + 64 * i, 32))[0] / 255 for i in range(9)]
    assert brightness == pytest.approx([i / 2 for i in (0, 0, 0, 1, 1, 1, 2, 2, 2)], abs=0.03)
    (place / "broken.mp4").write_bytes(b"no clip")
    (place / "index.json").write_text(json.dumps({"samples": [{"file": "broken.mp4", "prompt": "x"}]}))
    notes = []
    found = pictures.gallery(a_run / "samples", 10**6, notes)
    assert found["clips"] == {"frames": 9, "seconds": None}
    assert found["pictures"][-1] == [None]
    assert notes == ["samples: 5 picture(s) cannot be read"]


# ---- the command


def test_the_command_writes_a_page_and_plots(a_run, capsys, monkeypatch):
    code, out, err = command(capsys, monkeypatch, a_run, "--png", a_run / "plots")
    assert (code, err) == (0, "")
    assert f"{a_run / 'report.html'} (" in out
    plots = sorted(path.name for path in (a_run / "plots").iterdir())
    assert {"held-out.png", "training.png", "grad-norm.png", "stages.png", "guards-sharpness.png"} <= set(plots)
    with Image.open(a_run / "plots" / "held-out.png") as plot:
        assert plot.size == (1260, 840)
        assert len(plot.convert("RGB").getcolors(100_000)) > 10


def test_several_runs_in_a_file_of_ones_own(a_run, make_folder, tmp_path, capsys, monkeypatch):
    other = make_folder(tmp_path / "more" / "x", seed=3)
    made = tmp_path / "new" / "page.html"
    code, out, err = command(capsys, monkeypatch, a_run, other.parent, "--out", made)
    assert (code, out.split(" (")[0]) == (0, str(made))
    assert err == f"{other.parent} holds 1 run(s); taking the newest, x\n"
    assert len(data_of(made)["runs"]) == 2


def test_what_is_no_run_is_said(tmp_path, capsys, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "picture.png").write_bytes(b"")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("{}")  # another program's
    for path, words in (
        (tmp_path / "gone", "found nothing; accepted: the folder of a run"),
        (tmp_path / "a" / "picture.png", "found a file; accepted: the folder of a run"),
        (
            tmp_path / "a",
            "no metrics.jsonl, and no config.json beside a log.txt, there or one folder below (it holds picture.png)",
        ),
        (tmp_path / "b", "no metrics.jsonl, and no config.json beside a log.txt"),
    ):
        code, out, err = command(capsys, monkeypatch, path)
        assert (code, out) == (2, "")
        assert err.startswith(f"sanarl report {path}: ")
        assert words in err


def test_a_page_that_cannot_be_written_is_said(a_run, capsys, monkeypatch):
    code, _, err = command(capsys, monkeypatch, a_run, "--out", a_run / "log.txt" / "page.html")
    assert code == 2
    assert f"cannot be written ({a_run / 'log.txt'}: File exists); name another with --out" in err


def test_a_port_in_use_is_said(a_run, capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = command(capsys, monkeypatch, a_run, "--serve", "--port", port)
    assert code == 2
    assert err == (
        f"sanarl report --serve: port {port} of 127.0.0.1 is in use; name another with --port N, "
        "or --port 0 for any that is free\n"
    )


def test_no_torch_is_imported(a_run):
    code = "import sys; from sanarl import cli; sys.argv = ['sanarl', 'report', sys.argv[1]]\ntry:\n    cli.main()\n"
    code += "except SystemExit as stop:\n    assert not stop.code\nassert 'torch' not in sys.modules\n"
    assert subprocess.run([sys.executable, "-c", code, str(a_run)], check=False).returncode == 0


# ---- following a job


@pytest.fixture
def served(a_run):
    """(port, folder) of a page that is served."""
    made = server([a_run], 0)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    yield made.server_port, a_run
    made.shutdown()
    thread.join()
    made.server_close()


def ask(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_news_are_sent_when_there_are_some(served):
    port, folder = served
    status, headers, body = ask(port, "/data.json")
    assert (status, json.loads(body)["runs"][0]["state_text"]) == (200, "finished: 20 of 20 steps")
    tag = headers["ETag"]
    assert ask(port, "/data.json", **{"If-None-Match": tag})[0] == 304
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 21, "loss": 2.5}\n')
    status, headers, body = ask(port, "/data.json", **{"If-None-Match": tag})
    assert status == 200
    assert headers["ETag"] != tag
    assert json.loads(body)["runs"][0]["curves"]["loss"]["x"][-1] == 21


def test_only_this_machine_is_answered(served):
    port, _ = served
    assert ask(port, "/", Host=f"localhost:{port}")[0] == 200
    assert ask(port, "/", Host="evil.example")[0] == 403
    assert ask(port, "/data.json", Host=f"evil.example:{port}")[0] == 403
    assert ask(port, "/../log.txt")[0] == 404
    assert [ask(port, "/")[1][name] for name in ("X-Content-Type-Options", "X-Frame-Options")] == ["nosniff", "DENY"]


def test_the_page_follows_the_job(served, visit, monkeypatch):
    port, folder = served
    monkeypatch.setattr("sanarl.report.serve.FOLLOW_S", 0.2)
    shown = visit(f"http://127.0.0.1:{port}/")
    assert shown.locator("#live").inner_text() == "Following the run."
    shown.locator("#log-loss").focus()
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 21, "loss": 2.5}\n')
    expect(shown.locator("[data-chart=loss] .step")).to_have_text("step 21", timeout=30_000)
    assert shown.evaluate("document.activeElement.id") == "log-loss"
