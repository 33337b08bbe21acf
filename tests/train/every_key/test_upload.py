"""train.ckpt.upload_hf against a server that speaks the hub's protocol as far as its client asks; nothing is replaced.

Small files go into the commit itself, as the hub has it for files that need no LFS; it is the server that decides.
"""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from sanarl.config import ConfigError
from sanarl.errors import UserError
from sanarl.runtime import publish

honours = pytest.mark.honours
KEYS = "train.ckpt.upload_hf=true", "train.ckpt.export_safetensors=true"
NAME = 'train.ckpt.hf_repo_name="crew/tiny"'


class Hub(ThreadingHTTPServer):
    """Logins, repositories and files."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.role, self.orgs, self.repositories, self.refuses = (
            "write",
            [{"name": "crew", "roleInOrg": "write"}],
            {},
            "",
        )
        self.account, self.moved = None, False
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """The hub's answers."""

    def log_message(self, *_):
        """Say nothing."""

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.headers.get("authorization") != "Bearer hf_known":
            self.answer({"error": "Invalid credentials"}, 401)
        elif self.server.moved:
            self.answer({}, 302)
        elif self.server.account is not None:
            self.answer(self.server.account)
        elif self.path == "/api/whoami-v2":
            token = {"role": self.server.role}
            self.answer({"name": "ann", "orgs": self.server.orgs, "auth": {"accessToken": token}})
        else:
            self.answer({"error": "not found"}, 404)

    def do_POST(self):
        hub = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'ann'}/{asked['name']}"
            status = 409 if name in hub.repositories else 200
            hub.repositories.setdefault(name, {"private": asked.get("private") or asked.get("visibility") == "private"})
            self.answer({"url": f"{hub.url}/{name}", "name": name, "id": name}, status)
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif "/commit/" in self.path and hub.refuses:
            self.answer({"error": hub.refuses}, 403)
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    hub.repositories[name][line["value"]["path"]] = content
            commit = "0" * 40
            self.answer({"success": True, "commitOid": commit, "commitUrl": f"{hub.url}/{name}/commit/{commit}"})
        else:
            self.answer({"error": "not found"}, 404)


@pytest.fixture
def hub(monkeypatch):
    """The server, with a login here."""
    with Hub() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", found.url)  # what HF_ENDPOINT says when the hub's client is imported
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_known")
        yield found
        found.shutdown()


def said(run):
    return (run.folder / "log.txt").read_text(encoding="utf-8")


@honours("train.ckpt.upload_hf", "train.ckpt.hf_repo_name")
def test_the_last_export_of_a_finished_run(lab, hub):
    run = lab.fresh("sft-lora", *KEYS, NAME, "train.max_num_steps=2", "train.ckpt.save_freq=1")
    export = run.folder / "safetensors" / "step_2"
    found = hub.repositories.pop("crew/tiny")
    assert found.pop("private")
    assert found == {file.name: file.read_bytes() for file in export.iterdir()}
    assert "pytorch_lora_weights.safetensors" in found
    assert not hub.repositories
    assert f"uploaded {export} to {hub.url}/crew/tiny" in said(run)


def test_an_upload_that_fails_leaves_the_run_finished(lab, hub):
    hub.refuses = "You are over your quota"
    run = lab.fresh("sft-lora", *KEYS, 'train.ckpt.hf_repo_name="tiny"')
    assert run.code == 0
    export = run.folder / "safetensors" / "step_1"
    assert f"warning: {export} was not uploaded" in said(run)
    assert f"later: hf upload ann/tiny {export}" in said(run)


def test_a_login_that_cannot_upload_is_found_before_training(lab, hub, monkeypatch):
    def refused(name=NAME):
        with pytest.raises(UserError, match=r"train\.ckpt\.upload_hf") as caught:
            lab.fresh("sft-lora", *KEYS, name)
        return str(caught.value)

    hub.role = "read"
    assert "the login here may only read" in refused()
    hub.role = "write"
    assert "ann is logged in here and cannot write what others has; accepted owners: ann, crew" in refused(
        'train.ckpt.hf_repo_name="others/tiny"'
    )
    hub.orgs = [{"name": "crew", "roleInOrg": "read"}]
    assert "ann may only read what crew has" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_stranger")
    assert "the hub does not know the login here" in refused()
    monkeypatch.delenv("HF_TOKEN")
    assert "nobody is logged in here" in refused()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in refused()
    assert not hub.repositories


def test_a_hub_that_is_away(hub):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(UserError, match=f"the hub {hub.url} cannot be reached"):
        publish.repository("tiny")


def test_something_else_that_answers_for_a_hub(hub, monkeypatch):
    hub.account = ["a page of another kind"]
    with pytest.raises(UserError, match=f"what answers at {hub.url} is not a hub"):
        publish.repository("tiny")
    hub.moved = True
    with pytest.raises(UserError, match=f"the hub {hub.url} answers with HTTP 302"):
        publish.repository("tiny")
    for address in ("http://127.0.0.1:none", "garbage"):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(UserError, match=f"the hub {address} cannot be reached"):
            publish.repository("tiny")


def test_a_login_that_no_header_can_hold(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_schlüssel")
    with pytest.raises(UserError, match=r"train\.ckpt\.upload_hf"):
        publish.repository("tiny")


@pytest.mark.parametrize("name", ["me/x..y", "me/x--y", "me/x.git", "x.", "-me/x", "me/", "größe", "me/" + "x" * 97])
def test_names_that_the_hub_refuses(lab, name):
    """huggingface_hub's own check refuses the same names."""
    with pytest.raises(HFValidationError):
        validate_repo_id(name)
    with pytest.raises(ConfigError, match="accepted owner/name or a name"):
        lab.loaded("sft-lora", *KEYS, f'train.ckpt.hf_repo_name="{name}"')


@pytest.mark.parametrize("name", ["x", "Me_1/x.y-z_", "_a/b", "m" * 40 + "/" + "x" * 96])
def test_names_that_the_hub_takes(lab, name):
    validate_repo_id(name)
    assert lab.loaded("sft-lora", *KEYS, f'train.ckpt.hf_repo_name="{name}"').config.train.ckpt.hf_repo_name == name


def test_keys_that_contradict_an_upload(lab):
    for keys, words in (
        (KEYS, "train.ckpt.hf_repo_name: missing"),
        ((KEYS[0], NAME), "nothing is exported with export_safetensors = false"),
        ((*KEYS, NAME, "train.ckpt.enable_checkpoint=false"), "nothing is exported with enable_checkpoint = false"),
        ((*KEYS, 'train.ckpt.hf_repo_name="a/b/c"'), "accepted owner/name or a name"),
    ):
        with pytest.raises(ConfigError) as caught:
            lab.loaded("sft-lora", *keys)
        assert words in str(caught.value)
