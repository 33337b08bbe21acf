"""Fetching from a server of this process, and prompt sets that are made. No address outside this machine is asked."""

import hashlib
import http.server
import json
import random
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sanarl.config import load as load_config
from sanarl.data import fetch, geneval, ocr, vidprom
from sanarl.data.download import File, download
from sanarl.data.fetch import PromptSet, bring
from sanarl.data.module import load as load_module
from sanarl.errors import UserError

ROOT = Path(__file__).parents[2]
CONTENT = b"a cat\na dog\n" * 20_000  # longer than one piece


class Handler(http.server.BaseHTTPRequestHandler):
    """Gives CONTENT under several paths; the rest is not found.

    /good as it is, /redirect by another address, /far by itself for ever, /cut always ends early, /long does not end,
    /other is another content, /short a shorter one. /flaky breaks off every 100,000 bytes and goes on where it is
    asked to, /deaf breaks once and then starts anew whatever it is asked, /moved sends another part than was asked for.
    """

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path in ("/redirect", "/far"):
            self.send_response(302)
            self.send_header("Location", "/good" if self.path == "/redirect" else "/far")
            self.end_headers()
            return
        bodies = {"/other": CONTENT.replace(b"cat", b"cow"), "/short": CONTENT[:500]}
        if self.path not in (*bodies, "/good", "/cut", "/long", "/flaky", "/deaf", "/moved"):
            self.send_error(404)
            return
        body = bodies.get(self.path, CONTENT)
        self.send(body, self.first_byte(len(body)))

    def first_byte(self, length):
        """What the Range header asks for, where it is heard."""
        asked = self.headers.get("Range")
        if asked is None or self.path in ("/deaf", "/cut"):
            return 0
        self.server.asked[-1] += f" {asked}"
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        return start if start < length else -1

    def send(self, body, start):
        if start < 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            told = 0 if self.path == "/moved" else start
            self.send_header("Content-Range", f"bytes {told}-{len(body) - 1}/{len(body)}")
        if self.path != "/long":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        ends = {"/cut": 999, "/flaky": start + 100_000}
        if self.path == "/deaf" and self.server.asked.count("/deaf") == 1:
            ends["/deaf"] = 999
        try:
            for _ in range(100 if self.path == "/long" else 1):
                self.wfile.write(body[start : ends.get(self.path)])
        except OSError:
            self.server.broken.append(self.path)  # the reader had enough

    def log_message(self, *_):
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.asked, found.broken = [], []
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def file(server):
    def make(path="/good", **changes):
        values = {"name": "train.txt", "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
        return File(**{**values, "url": f"http://127.0.0.1:{server.server_port}{path}", **changes})

    server.asked.clear()
    return make


@pytest.fixture
def online(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))


def page(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("path", ["/good", "/redirect"])
def test_a_file_gets_its_name_when_it_is_whole(file, tmp_path, path):
    download(file(path), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["train.txt"]
    assert (tmp_path / "train.txt").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/none", "cannot be fetched: 404 Not Found"),
        ("/far", "cannot be fetched: "),
        ("/long", "bytes or more, sha256"),
        ("/short", "found 500 bytes, sha256"),
        ("/other", f"found {len(CONTENT)} bytes, sha256"),
    ],
)
def test_nothing_is_left_of_what_is_not_right(file, tmp_path, path, expected):
    (tmp_path / "train.txt").write_text("older")
    assert expected in page(download, file(path), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["train.txt"]
    assert (tmp_path / "train.txt").read_text() == "older"


def test_a_connection_that_breaks_off_is_gone_on_with(file, server, tmp_path):
    told = []
    download(file("/flaky"), tmp_path, lambda done, total: told.append((done, total)))
    assert (tmp_path / "train.txt").read_bytes() == CONTENT
    assert server.asked == ["/flaky", "/flaky bytes=100000-", "/flaky bytes=200000-"]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert told == sorted(told)


def test_what_came_is_kept_for_the_next_call(file, server, tmp_path):
    text = page(download, file("/cut"), tmp_path)
    assert f"/cut: broke off after 999 of {len(CONTENT)} bytes: the connection was closed; what came is kept in" in text
    assert server.asked == ["/cut", "/cut"]  # the second time nothing more came
    assert [p.name for p in tmp_path.iterdir()] == [".train.txt.partial"]
    server.asked.clear()
    download(file("/good"), tmp_path)
    assert server.asked == ["/good bytes=999-"]
    assert [p.name for p in tmp_path.iterdir()] == ["train.txt"]
    assert (tmp_path / "train.txt").read_bytes() == CONTENT


def test_a_server_that_knows_no_parts(file, tmp_path):
    download(file("/deaf"), tmp_path)
    assert (tmp_path / "train.txt").read_bytes() == CONTENT


@pytest.mark.parametrize("kept", [b"of another content", CONTENT + b"more", CONTENT[:-1] + b"x", b""])
def test_what_was_kept_and_is_wrong_is_fetched_anew(file, tmp_path, kept):
    (tmp_path / ".train.txt.partial").write_bytes(kept)
    download(file("/good"), tmp_path)
    assert (tmp_path / "train.txt").read_bytes() == CONTENT


def test_parts_that_do_not_fit(file, tmp_path):
    (tmp_path / ".train.txt.partial").write_bytes(CONTENT[:100_000])
    assert "it sent another part than was asked for" in page(download, file("/moved"), tmp_path)
    assert "found 500 bytes" in page(download, file("/short"), tmp_path)  # 416: its file is shorter than what is there
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_end_is_not_read_to_the_end(file, server, tmp_path):
    page(download, file("/long", size=100), tmp_path)
    assert "/long" in server.broken or server.asked == ["/long"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x", "http://no.such.host.invalid/x", "nonsense", "file:///nowhere/x"]
)
def test_addresses_that_do_not_answer(file, tmp_path, url):
    assert f"{url}: cannot be fetched" in page(download, file(url=url), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def own(file, monkeypatch):
    """A known set of one file of the server."""
    monkeypatch.setitem(fetch.SETS, "own", PromptSet("a set", "CC0", (file(),)))


@pytest.mark.usefixtures("online", "own")
def test_a_set_is_fetched_once_and_again_when_it_is_damaged(server, tmp_path):
    lines = bring("own")
    assert lines[0] == "own: a set; licence: CC0"
    assert lines[2] == f"train.txt: fetched, {len(CONTENT)} bytes"
    assert bring("own")[2] == "train.txt: was there"
    assert server.asked == ["/good"]
    place = tmp_path / "home" / "datasets" / "own" / "train.txt"
    place.write_bytes(CONTENT[:-1] + b"x")
    assert bring("own")[2].startswith("train.txt: fetched")
    place.write_bytes(b"")
    assert bring("own")[2].startswith("train.txt: fetched")
    bring("own", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "train.txt").read_bytes() == CONTENT


@pytest.mark.usefixtures("online", "own")
def test_without_network_it_is_said_what_to_put_where(monkeypatch, server, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = page(bring, "own")
    assert server.asked == []
    place = tmp_path / "home" / "datasets" / "own" / "train.txt"
    assert "not fetched, as HF_HUB_OFFLINE is set" in text
    assert f"put that file ({len(CONTENT)} bytes, sha256 {hashlib.sha256(CONTENT).hexdigest()}) at {place}" in text
    place.write_bytes(CONTENT)
    assert bring("own")[2] == "train.txt: was there"


def settings(name, **keys):
    given = [f"train.train_policy.dataset.{key}={value}" for key, value in {"name": name, **keys}.items()]
    return load_config(
        "tiny-image-nft", [*given, "validation.dataset.split=test", f"validation.dataset.name={name}"]
    ).config


NFT = "sanarl.datasets.diffusion_nft"


@pytest.mark.usefixtures("online", "own")
def test_training_fetches_on_first_use(server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = load_module(NFT).train(settings("own"))
    assert len(found) == 40_000
    assert "own: a set; licence: CC0" in found.notes
    again = load_module(NFT).train(settings("own"))
    assert server.asked == ["/good"]
    assert again.notes == [f"own: from {tmp_path}/home/datasets/own; licence: CC0"]


@pytest.mark.usefixtures("online", "own")
def test_a_set_without_the_split(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = page(load_module(NFT).validation, settings("own"))
    assert "validation.dataset.split 'test': found train.txt in" in text


def test_offline_the_key_and_the_folders_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    text = page(load_module(NFT).train, settings("pickscore"))
    assert text.startswith("train.train_policy.dataset: https://raw.githubusercontent.com/")
    assert "looked for the folders: datasets/pickscore" in text


def test_a_folder_of_the_person_comes_first(monkeypatch, tmp_path):
    """The layout of Sol-RL's dataset folder: NAME/train.txt, NAME/test_metadata.jsonl and so on, as it is."""
    monkeypatch.chdir(tmp_path)
    for name, files in (("pickscore", ("train.txt", "test.txt")), ("geneval", ("train_metadata.jsonl",))):
        (tmp_path / "dataset" / name).mkdir(parents=True)
        for file in files:
            line = json.dumps({"prompt": f"own {name}", "tag": "counting"}) if file.endswith("l") else f"own {name}"
            (tmp_path / "dataset" / name / file).write_text(line + "\n")
    for name in ("pickscore", "geneval"):
        found = load_module(NFT).train(settings(name, local_dir=tmp_path / "dataset"))
        assert found[0]["prompt"] == f"own {name}"
    assert found[0]["metadata"]["tag"] == "counting"


# ------------------------------------------------------------------ sets that are made


def test_the_test_splits_that_ship_are_what_the_recipes_give():
    lines = (ROOT / "datasets" / "geneval" / "test_metadata.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == geneval.test_set()
    assert (ROOT / "datasets" / "ocr" / "test.txt").read_text().splitlines() == ocr.test_set()


def test_geneval_needs_no_download(monkeypatch, tmp_path):
    """In the repository's folder the test split that ships stands beside a training set that is made."""
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(ROOT)
    train = load_module(NFT).train(settings("geneval"))
    assert len(train) == geneval.TRAIN
    assert train[0]["metadata"]["prompt"] == train[0]["prompt"]
    assert train[0]["metadata"]["tag"] in geneval.MIX
    test = load_module(NFT).validation(settings("geneval"))
    assert len(test) == 120
    assert {item["prompt"] for item in train}.isdisjoint(item["prompt"] for item in test)
    monkeypatch.chdir(tmp_path)
    assert list(load_module(NFT).validation(settings("geneval"))) == list(test)


def test_geneval_lines_mean_what_they_say():
    """Reference: the recipe's words and fields, read back from the prompt."""
    lines = [*geneval.test_set(), *geneval.train_set(3000)]
    numbers = {word: i for i, word in enumerate(geneval.NUMBERS, 2)}
    for line in lines:
        text, include = line["prompt"].removeprefix("a photo of "), line["include"]
        assert set(line) == {"tag", "include", "prompt"} | ({"exclude"} if line["tag"] == "counting" else set())
        assert all(one["class"] in geneval.CLASSES for one in include)
        if line["tag"] == "counting":
            assert numbers[text.split()[0]] == include[0]["count"]
            assert line["exclude"] == [{"class": include[0]["class"], "count": include[0]["count"] + 1}]
        elif line["tag"] == "position":
            word, other = include[1]["position"]
            assert other == 0
            assert text.endswith(f"{include[1]['class']} {word} {geneval._a(include[0]['class'])}")
        elif "color" in include[0]:
            assert all(f"{one['color']} {one['class']}" in text for one in include)
            assert all(one["class"] != "person" for one in include)
        else:
            assert all(one["class"] in text for one in include)
    assert len(geneval.CLASSES) == len(set(geneval.CLASSES)) == 80
    assert Counter(line["tag"] for line in geneval.test_set()) == dict.fromkeys((*geneval.MIX, "single_object"), 20)


def test_geneval_is_drawn_by_its_seed_in_the_published_mix():
    one = geneval.train_set(4000)
    assert one == geneval.train_set(4000)
    assert one != geneval.train_set(4000, seed=1)
    for tag, part in geneval.MIX.items():  # five standard deviations of a share of 4000 are below 0.04
        assert sum(line["tag"] == tag for line in one) / 4000 == pytest.approx(part / 17, abs=0.04)
    barred = frozenset(line["prompt"] for line in one[:500])
    assert barred.isdisjoint(line["prompt"] for line in geneval.train_set(2000, exclude=barred))


def test_ocr_prompts_quote_one_text_that_no_test_prompt_quotes():
    train, test = ocr.train_set(3000), ocr.test_set()
    assert train == ocr.train_set(3000)
    assert len(set(train)) == 3000
    assert all(prompt.count('"') == 2 and ocr.quoted(prompt) for prompt in (*train, *test))
    assert {ocr.quoted(p) for p in train}.isdisjoint(ocr.quoted(p) for p in test)
    assert ocr.quoted("no quotes") == ""


def test_sets_that_are_made_are_the_same_everywhere():
    """Reference: hashes of the first 1,000 lines as drawn on Python 3.11; other seeds give other sets."""
    found = [[json.dumps(line) for line in geneval.train_set(1000)], ocr.train_set(1000)]
    assert [hashlib.sha256("\n".join(lines).encode()).hexdigest() for lines in found] == [
        "44e20576afb601de4e644e0f106ce877d2188781445261fcea93ffa853fd1c84",
        "3056c8b3eaa0c69d9889eefff440307973fb309b7ac5de9a227bc28a8b09becd",
    ]
    assert [json.dumps(line) for line in geneval.train_set(1000, seed=1)] != found[0]
    assert ocr.train_set(1000, seed=1) != found[1]


# ------------------------------------------------------------------ vidprom


def table(path, rows, columns=("uuid", "prompt", "time", *vidprom.SCORES)):
    lines = [",".join(columns)]
    for prompt, score in rows:
        lines.append(",".join(["u", '"' + prompt.replace('"', '""') + '"', "t", *[str(score)] * len(vidprom.SCORES)]))
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


ROWS = [
    ("a cat walks over the street", 0.01),
    ("A  cat walks, over the street!", 0.01),  # duplicate
    ("short", 0.0),
    ("word " * 81, 0.0),
    ("a very rude prompt of words", 0.2),
    ("scores that are missing here", ""),
    ("look at https://example.com now please", 0.0),
    ("   ", 0.0),
    ("naïve café scene 🎬 at dawn", 0.19),
    ("a dog runs along the beach", 0.0),
]


def test_vidprom_is_filtered_by_stated_rules(tmp_path):
    train, test, report = vidprom.select(table(tmp_path / "a.csv", ROWS))
    assert sorted(train + test) == sorted([ROWS[0][0], ROWS[8][0], ROWS[9][0]])
    expected = {"duplicate": 1, "length": 2, "no text": 2, "read": 10, "toxic": 2, "left": 3, "train": 2, "test": 1}
    assert report["counts"] == expected
    assert report["rules"]["max_score"] == 0.2


def test_vidprom_does_not_depend_on_the_order_of_the_file(tmp_path):
    rows = [(f"a video of thing number {i}", 0.0) for i in range(200)]
    one = vidprom.select(table(tmp_path / "a.csv", rows), train=50, test=10)
    random.Random(0).shuffle(rows)
    two = vidprom.select(table(tmp_path / "b.csv", rows), train=50, test=10)
    assert one == two
    assert (len(one[0]), len(one[1])) == (50, 10)


def test_vidprom_faults(tmp_path):
    assert "found no column toxicity, obscene" in page(
        vidprom.select, table(tmp_path / "a.csv", [], ("uuid", "prompt"))
    )
    assert "0 prompts are left of 1" in page(vidprom.select, table(tmp_path / "b.csv", ROWS[2:3]))
    assert "cannot be read" in page(vidprom.select, tmp_path / "none.csv")
    (tmp_path / "c.csv").write_bytes(b"prompt\xff")
    assert "cannot be read" in page(vidprom.select, tmp_path / "c.csv")


NFT_VIDPROM = ["train.train_policy.dataset.name=vidprom"]


def test_vidprom_serves_the_video_preset_with_one_key(tmp_path, monkeypatch):
    monkeypatch.setenv("SANARL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    config = load_config("sana-video-nft", NFT_VIDPROM).config
    text = page(load_module(NFT).train, config)
    place = tmp_path / "home" / "datasets" / "vidprom"
    assert "put that file (382734674 bytes, sha256 7668b87803b67638" in text
    assert f"at {place}/VidProM_unique.csv" in text
    source = table(tmp_path / "VidProM_unique.csv", ROWS)
    lines = bring("vidprom", None, source)
    assert "differs from the VidProM_unique.csv that is known here" in lines[2]
    assert "  2 train" in lines
    assert source.is_file()
    assert len(load_module(NFT).train(config)) == 2
    report = json.loads((place / "report.json").read_text())
    assert report["counts"]["toxic"] == 2
    assert bring("vidprom")[2:] == ["train.txt: was there"]


@pytest.mark.usefixtures("online")
def test_vidprom_is_fetched_and_filtered_on_first_use(tmp_path, monkeypatch):
    """The set as it stands, but for the address, size and hash of its file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web").mkdir()
    source = table(tmp_path / "web" / "VidProM_unique.csv", ROWS)
    data = source.read_bytes()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=source.parent)
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{web.server_port}/VidProM_unique.csv"
        file = File(source.name, url, len(data), hashlib.sha256(data).hexdigest())
        monkeypatch.setitem(fetch.SETS, "vidprom", replace(fetch.SETS["vidprom"], files=(file,)))
        found = load_module(NFT).train(load_config("sana-video-nft", NFT_VIDPROM).config)
        web.shutdown()
        thread.join()
    assert len(found) == 2
    assert "licence: CC BY-NC 4.0" in found.notes[0]
    names = sorted(p.name for p in (tmp_path / "home" / "datasets" / "vidprom").iterdir())
    assert names == [".lock", "report.json", "test.txt", "train.txt"]  # the large file is not kept


def test_names_of_sets():
    assert "there is no prompt set 'pickscor'; did you mean 'pickscore'?" in page(bring, "pickscor")
    assert "made of no single file" in page(bring, "pickscore", None, Path("x"))
    for name, one in fetch.SETS.items():
        assert one.licence, name
        assert all(len(file.sha256) == 64 and file.size > 0 for file in one.files)
        assert all(file.url.startswith("https://") for file in one.files)
