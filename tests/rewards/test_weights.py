"""Where weights are searched, what is said when they are missing, and fetching them from a hub on this machine."""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from sanarl.cli import app
from sanarl.errors import UserError
from sanarl.rewards import TABLE, weights
from sanarl.rewards.fetching import fetch
from sanarl.rewards.weights import CLIP_L, HPS_V21, IMAGE_REWARD, PICKSCORE


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty hub cache, and an empty working directory."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "hub"


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("x")
    return folder


def cached(cache, repo, *names):
    base = cache / f"models--{repo.replace('/', '--')}"
    put(base / "refs", "main")
    (base / "refs" / "main").write_text("abc")
    return put(base / "snapshots" / "abc", *names)


MODEL = ("config.json", "model.safetensors")


def test_places_in_their_order(cache, tmp_path):
    """Reference: model_path, then ./reward_ckpts, then the hub's cache."""
    there = cached(cache, PICKSCORE.repo, *MODEL)
    assert weights.folder(PICKSCORE, "pickscore").resolve() == there
    put(tmp_path / "here" / "reward_ckpts" / "PickScore_v1", "config.json", "pytorch_model.bin")
    assert weights.folder(PICKSCORE, "pickscore").name == "PickScore_v1"
    own = put(tmp_path / "own", *MODEL)
    assert weights.folder(PICKSCORE, "pickscore", str(own)) == own
    assert weights.folder(PICKSCORE, "pickscore", str(put(tmp_path / "empty"))).name == "PickScore_v1"
    below = put(tmp_path / "all" / "yuvalkirstain" / "PickScore_v1", *MODEL)
    assert weights.folder(PICKSCORE, "pickscore", str(tmp_path / "all")) == below


def test_a_folder_as_sol_rl_has_it(cache):  # noqa: ARG001
    put(weights.FOLDER, "open_clip_pytorch_model.bin", "HPS_v2.1_compressed.pt")
    assert weights.file(HPS_V21, "hpsv2") == weights.FOLDER / "HPS_v2.1_compressed.pt"


def test_a_file_by_another_name(cache, tmp_path):  # noqa: ARG001
    mine = put(tmp_path / "x", "mine.pt") / "mine.pt"
    assert weights.file(HPS_V21, "hpsv2", str(mine)) == mine


def test_former_names_and_other_repositories(cache):
    there = cached(cache, "THUDM/ImageReward", *IMAGE_REWARD.files)
    assert weights.folder(IMAGE_REWARD, "imagereward").resolve() == there
    mine = cached(cache, "me/mine", *MODEL)
    assert weights.folder(PICKSCORE, "pickscore", "me/mine").resolve() == mine


def test_what_is_missing_is_said_in_full(cache, tmp_path):
    put(tmp_path / "here" / "reward_ckpts" / "clip-vit-large-patch14", "config.json", "tokenizer.json")
    put(tmp_path / "half", "config.json")
    (tmp_path / "half" / "model.safetensors").touch()  # what an interrupted download leaves
    with pytest.raises(UserError) as caught:
        weights.folder(CLIP_L, "clipscore", str(tmp_path / "half"))
    files = "config.json, model.safetensors or pytorch_model.bin or model.safetensors.index.json, "
    files += "tokenizer.json or vocab.json, preprocessor_config.json"
    lacking = "model.safetensors|pytorch_model.bin|model.safetensors.index.json"
    assert str(caught.value).splitlines() == [
        f"the weights of clipscore are missing: openai/clip-vit-large-patch14, {files}",
        f"  searched: model_path {tmp_path / 'half'}; ./reward_ckpts (below {tmp_path / 'here'}); "
        f"the hub's cache {cache}",
        f"  {tmp_path / 'half'} lacks {lacking}, tokenizer.json|vocab.json, preprocessor_config.json",
        f"  reward_ckpts/clip-vit-large-patch14 lacks {lacking}, preprocessor_config.json",
        f"  to fetch them: {sys.executable} -m sanarl reward fetch clipscore",
    ]


def test_a_model_path_that_is_nothing(cache):  # noqa: ARG001
    with pytest.raises(
        UserError, match=r"model_path: found '\./no', which does not exist; accepted: a file, a folder or"
    ):
        weights.folder(CLIP_L, "clipscore", "./no")


# ------------------------------------------------------------------ fetch


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for."""

    files: ClassVar[dict] = {}
    etags: ClassVar[dict] = {}

    def _answer(self, body, headers=(), status=200):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if "/tree/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(body), "oid": self.etags[name]}
                for name, body in self.files.items()
            ]
            return self._answer(json.dumps(entries).encode(), {"Content-Type": "application/json"})
        if path.startswith("/api/models/"):
            names = [{"rfilename": name} for name in self.files]
            text = json.dumps({"id": "xswu/HPSv2", "sha": "f" * 40, "siblings": names})
            return self._answer(text.encode(), {"Content-Type": "application/json"})
        name = path.rpartition("/")[2]
        if name not in self.files:
            return self._answer(b"", status=404)
        headers = {
            "ETag": f'"{self.etags[name]}"',
            "X-Repo-Commit": "f" * 40,
            "X-Linked-Size": str(len(self.files[name])),
        }
        return self._answer(self.files[name], headers)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(cache, monkeypatch):  # noqa: ARG001
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def serve(body, etag):
    Hub.files, Hub.etags = (
        {"HPS_v2.1_compressed.pt": body, "README.md": b"hi"},
        {
            "HPS_v2.1_compressed.pt": etag,
            "README.md": "a" * 40,
        },
    )


BODY = b"values" * 1000
GIT = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.mark.parametrize(("etag", "kind"), [(SHA256, "sha256"), (GIT, "sha1")])
@pytest.mark.parametrize("to", [None, "reward_ckpts"])
def test_fetched_weights_are_checked_and_found(hub, etag, kind, to):
    serve(BODY, etag)
    lines = []
    (path,) = fetch("hpsv2", None if to is None else weights.FOLDER, hub, lines.append)
    assert path.read_bytes() == BODY
    assert lines == [f"{path}  {kind}:{etag}"]
    found = weights.file(HPS_V21, "hpsv2")
    assert found.read_bytes() == BODY
    assert (found.parent == weights.FOLDER) == (to is not None)


def test_a_wrong_hash_leaves_nothing(hub):
    serve(BODY, "0" * 64)
    with pytest.raises(UserError, match=f"the hub states the hash 0{{64}}, the download has {SHA256}; removed"):
        fetch("hpsv2", weights.FOLDER, hub, print)
    assert weights.found(HPS_V21, "hpsv2") is None
    assert not (weights.FOLDER / "HPS_v2.1_compressed.pt").exists()


def test_what_cannot_be_fetched_is_named(hub):
    with pytest.raises(UserError, match="'pickscroe' has no weights to fetch; did you mean 'pickscore'"):
        fetch("pickscroe", endpoint=hub)
    serve(BODY, SHA256)
    Hub.files.pop("HPS_v2.1_compressed.pt")
    with pytest.raises(UserError, match=r"xswu/HPSv2: the hub has no HPS_v2\.1_compressed\.pt there"):
        fetch("hpsv2", endpoint=hub)


def test_without_a_network_the_repository_is_named(cache):  # noqa: ARG001
    with pytest.raises(UserError, match="xswu/HPSv2: could not be fetched from the hub: "):
        fetch("hpsv2")


def test_the_list_says_what_is_there(cache):  # noqa: ARG001
    put(weights.FOLDER, "HPS_v2.1_compressed.pt")
    result = CliRunner().invoke(app, ["reward", "list"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines() if line[0] != " "] == list(TABLE)
    assert "xswu/HPSv2: reward_ckpts" in result.output
    assert "yuvalkirstain/PickScore_v1: missing" in result.output
