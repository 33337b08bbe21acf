"""What goes wrong for people who are new here: each mistake is made, and answered by one page and exit code 2.

SANARL_SNAPSHOTS=write pytest tests/train/using/test_mistakes.py writes the pages anew; read the diff.
"""

import http.server
import os
import re
import resource
import shutil
import socket
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGES = Path(__file__).parent / "pages"
REPOSITORY = Path(__file__).parents[3]
ERRORS = {"/gated/": (403, "GatedRepo"), "/private/": (401, "RepoNotFound"), "/bare/": (404, "EntryNotFound")}


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for models that are gated, private, or no pipelines; the rest breaks down."""

    def do_HEAD(self):
        status, code = next((answer for start, answer in ERRORS.items() if self.path.startswith(start)), (500, ""))
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def hub():
    """Address of such a hub."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextmanager
def small_files():
    """Let the system refuse files beyond 32 KiB, as a full disk would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@dataclass
class Desk:
    """What a case may use."""

    tmp: Path
    run: Path
    toml: object
    sanarl: object
    monkeypatch: object

    def copy(self):
        """A run of one's own."""
        return Path(shutil.copytree(self.run, self.tmp / "run"))

    def file(self, name, text):
        """A file with some text."""
        path = self.tmp / name
        path.write_text(text, encoding="utf-8")
        return path

    def folder(self, name):
        """An empty folder."""
        (self.tmp / name).mkdir()
        return self.tmp / name

    def preset(self, task="nft"):
        """A preset of a tiny run."""
        return self.file(f"{task}.toml", self.toml(task, self.tmp / "out"))

    def train(self, *keys, task="nft", rest=()):
        """sanarl train on that preset."""
        sets = [part for key in keys for part in ("--set", key)]
        return self.sanarl("train", "--config", self.preset(task), *sets, *rest)

    def hub(self, endpoint, offline=False):
        """Ask another hub, with no login."""
        from huggingface_hub import constants

        self.monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        self.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        self.monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(self.tmp / "no-token"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            self.monkeypatch.delenv(name, raising=False)

    def sample(self, *arguments):
        """sanarl sample with a prompt."""
        return self.sanarl("sample", *arguments, "--prompt", "a red circle", "--out", self.tmp / "samples")


@pytest.fixture
def desk(tmp_path, baseline, toml, sanarl, monkeypatch):
    """See ``Desk``; the working directory is one's own."""
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, baseline("nft").folder, toml, sanarl, monkeypatch)


CASES = {}


def mistake(case):
    """Add a case by its name."""
    CASES[case.__name__] = case
    return case


# ---- names of files and folders


@mistake
def no_such_run(desk):
    return desk.sample("--run", desk.tmp / "nowhere")


@mistake
def folder_of_nothing(desk):
    return desk.sample("--run", desk.folder("empty"))


@mistake
def run_of_another_program(desk):
    desk.folder("theirs").joinpath("config.json").write_text('{"model_type": "sana"}')
    return desk.sample("--run", desk.tmp / "theirs")


@mistake
def damaged_export(desk):
    run = desk.copy()
    weights = run / "safetensors" / "step_4" / "pytorch_lora_weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    return desk.sample("--run", run, "--step", 4)


@mistake
def damaged_checkpoint_alone(desk):
    run = desk.copy()
    shutil.rmtree(run / "safetensors")
    (run / "checkpoints" / "step_4" / "state.pt").write_bytes(b"short")
    return desk.sample("--run", run, "--step", 4)


@mistake
def neither_run_nor_model(desk):
    return desk.sanarl("eval", desk.folder("empty"), "--prompts", "shapes", "--rewards", "shapes")


@mistake
def no_such_step(desk):
    return desk.sample("--run", desk.run, "--step", 3)


@mistake
def no_prompts_file(desk):
    return desk.sanarl("sample", "--model", "tiny-image", "--prompts", "nowhere.txt")


@mistake
def no_such_prompt_set(desk):
    return desk.sanarl("sample", "--model", "tiny-image", "--prompts", "pickscor")


@mistake
def blank_prompt_set(desk):
    return desk.sanarl("sample", "--model", "tiny-image", "--prompts", "")


@mistake
def folder_of_prompts(desk):
    return desk.sanarl("sample", "--model", "tiny-image", "--prompts", desk.folder("mine.txt"))


@mistake
def nothing_to_draw(desk):
    return desk.sanarl("sample", "--model", "tiny-image")


@mistake
def run_and_model(desk):
    return desk.sample("--run", desk.run, "--model", "tiny-image")


@mistake
def no_adapter_there(desk):
    return desk.sample("--model", "tiny-image", "--lora", desk.folder("empty"))


@mistake
def adapter_of_another_model(desk):
    return desk.sample("--model", "tiny-image", "--lora", desk.run / "safetensors" / "step_4")


# ---- configuration


@mistake
def misspelt_preset(desk):
    return desk.sanarl("train", "--config", "tiny-image-ntf")


@mistake
def misspelt_key(desk):
    text = desk.toml("nft", desk.tmp / "out").replace("optm_lr =", "optm_lrr =")
    return desk.sanarl("train", "--config", desk.file("mine.toml", text))


@mistake
def broken_toml(desk):
    return desk.sanarl("train", "--config", desk.file("mine.toml", "[policy\nmodel = 3\n"))


@mistake
def set_without_value(desk):
    return desk.train("train.optm_lr")


@mistake
def wrong_dtype(desk):
    return desk.train("train.param_dtype=float61", "policy.diffusers.dtype=fp16")


@mistake
def odd_size(desk):
    return desk.sample("--model", "tiny-image", "--size", "100x100")


@mistake
def size_beyond_all_bounds(desk):
    return desk.sample("--model", "tiny-image", "--size", "8224x8192")


@mistake
def size_of_one_side(desk):
    return desk.sample("--model", "tiny-image", "--size", "512")


@mistake
def video_of_a_picture_model(desk):
    return desk.train("policy.diffusers.is_video=true", "policy.diffusers.inference_frames=5")


@mistake
def misspelt_reward(desk):
    return desk.train("train.train_policy.reward_function={shapez=1.0}")


@mistake
def misspelt_reward_of_eval(desk):
    return desk.sanarl("eval", desk.run, "--rewards", "pickscor", "--prompts", "shapes")


@mistake
def misspelt_layer(desk):
    return desk.train('policy.lora.target_modules=["attn1.to_qq"]')


@mistake
def rank_beyond_the_layers(desk):
    return desk.train("policy.lora.r=4096")


@mistake
def processes_in_words(desk):
    return desk.train(rest=["--nproc", "two"])


# ---- data and code of one's own


@mistake
def no_data_set(desk):
    keys = ("local_dir=path/to/training_set", 'name=""')
    return desk.train(*(f"train.train_policy.dataset.{key}" for key in keys), task="sft")


@mistake
def empty_data_set(desk):
    keys = (f"local_dir={desk.folder('empty')}", 'name=""')
    return desk.train(*(f"train.train_policy.dataset.{key}" for key in keys), task="sft")


@mistake
def module_without_data(desk):
    return desk.train(rest=[desk.file("mine.py", "def get_data(config):\n    return []\n")])


@mistake
def module_that_fails(desk):
    return desk.train(rest=[desk.file("mine.py", "def get_dataset(config):\n    return [1 / 0]\n")])


# ---- the machine


@mistake
def out_of_memory(desk):
    return desk.train("policy.diffusers.inference_size=[8192, 8192]", "rollout.n_generation_mini_batch=4096")


@mistake
def no_disk(desk):
    with small_files():
        return desk.train('logging.logger=["console"]')


@mistake
def unwritable_output(desk):
    return desk.train("train.output_dir=/proc/runs")


@mistake
def unwritable_samples(desk):
    return desk.sanarl("sample", "--run", desk.run, "--prompt", "a red circle", "--out", "/proc/samples")


@mistake
def report_into_a_folder(desk):
    return desk.sanarl("report", desk.run, "--out", desk.folder("pages"))


@mistake
def port_of_reports_in_use(desk):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = desk.sanarl("report", desk.run, "--serve", "--port", port)
    return type(done)(done.code, done.out, done.err.replace(str(port), "PORT"))


@mistake
def port_in_use(desk):
    config = REPOSITORY / "docs/examples/reward_service/rewards.toml"
    desk.monkeypatch.setenv("REMOTE_REWARD_TOKEN", "secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = desk.sanarl("reward", "serve", "--config", config, "--host", "127.0.0.1", "--port", port)
    return type(done)(done.code, done.out, done.err.replace(str(port), "PORT"))


@mistake
def missing_package(desk):
    desk.monkeypatch.setitem(sys.modules, "rapidocr", None)
    return desk.sanarl("eval", desk.run, "--rewards", "ocr", "--prompts", "shapes")


@mistake
def missing_extra(desk):
    desk.monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [name for name in sys.modules if name.startswith("sanarl.rewards.server.run")]:
        desk.monkeypatch.delitem(sys.modules, name)
    return desk.sanarl("reward", "serve", "--config", REPOSITORY / "docs/examples/reward_service/rewards.toml")


@mistake
def missing_weights(desk):
    return desk.sanarl("eval", desk.run, "--rewards", "pickscore", "--prompts", "shapes")


# ---- the hub


@mistake
def hub_away(desk):
    desk.hub("http://127.0.0.1:1")
    return desk.sample("--model", "somebody/a-model")


@mistake
def hub_away_for_weights(desk):
    desk.hub("http://127.0.0.1:1")
    return desk.sanarl("reward", "fetch", "hpsv2")


@mistake
def hub_turned_off(desk):
    desk.hub("http://127.0.0.1:1", offline=True)
    return desk.sample("--model", "somebody/another-model")


@mistake
def hub_broken(desk, hub):
    desk.hub(hub)
    return desk.sample("--model", "somebody/broken-model")


@mistake
def gated_model(desk, hub):
    desk.hub(hub)
    return desk.sample("--model", "gated/model")


@mistake
def private_model_without_login(desk, hub):
    desk.hub(hub)
    return desk.sample("--model", "private/model")


@mistake
def private_model_with_login(desk, hub):
    desk.hub(hub)
    desk.monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    return desk.sample("--model", "private/model-of-others")


@mistake
def no_pipeline_on_the_hub(desk, hub):
    desk.hub(hub)
    return desk.sample("--model", "bare/weights")


@mistake
def no_hub_id(desk):
    return desk.sample("--model", "tiny-imgae")


# ---- going on with a run


@mistake
def nothing_to_resume(desk):
    return desk.train(rest=["--resume", desk.folder("empty")])


@mistake
def damaged_checkpoint(desk):
    run = desk.copy()
    state = run / "checkpoints" / "step_4" / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    return desk.train(f"train.output_dir={desk.run.parent}", rest=["--resume", run])


@mistake
def changed_configuration(desk):
    return desk.train("train.seed=1", "policy.lora.r=2", rest=["--resume", desk.run])


@mistake
def locked_run(desk):
    from sanarl.runtime.folder import RunFolder

    run = desk.copy()
    with RunFolder(run).lock():
        return desk.train(rest=["--resume", run])


def plain(text, desk):
    """Without what differs from machine to machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    names = {sys.executable: "PYTHON"}  # first: the environment may lie in the repository
    names |= {str(desk.tmp): "TMP", str(desk.run.parent): "RUNS", str(REPOSITORY): "REPOSITORY", HF_HUB_CACHE: "CACHE"}
    for name, word in names.items():
        text = text.replace(name, word)
    text = re.sub(r"\d{8}-\d{6}(-\d+)?", "RUN", text)
    text = re.sub(r"/\S*pipeline0/smallest", "MODEL", text)
    text = re.sub(r"http://127\.0\.0\.1:\d{4,}", "http://HUB", text)
    text = re.sub(r"accepted: [a-z0-9_, ]+, or your own", "accepted: NAMES, or your own", text)
    text = re.sub(r"machine has [\d.]+ GB", "machine has SO MANY GB", text)
    return re.sub(r"/\S*/lib/python3\.\d+", "LIB", text)


@pytest.mark.parametrize("name", list(CASES))
def test_a_mistake_is_answered_by_one_page(name, desk, hub, recwarn):
    case = CASES[name]
    done = case(desk, hub) if "hub" in case.__code__.co_varnames[: case.__code__.co_argcount] else case(desk)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    file, found = PAGES / f"{name}.txt", plain(done.err, desk)
    if os.environ.get("SANARL_SNAPSHOTS") == "write":
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")
    assert len(recwarn) == 0


def test_no_page_without_its_mistake():
    assert sorted(path.stem for path in PAGES.iterdir()) == sorted(CASES)
    assert len(CASES) > 40


def test_a_large_model_without_a_gpu_is_remarked_on(train, monkeypatch, capsys):
    from sanarl.training import plan

    keys = ["validation.enable=false", 'logging.logger=["console"]']
    train("sft-lora", *keys)
    assert "no GPU" not in capsys.readouterr().err
    monkeypatch.setattr(plan, "LARGE", 1000)
    train("sft-lora", *keys, into="large")
    assert "warning: torch sees no GPU here" in capsys.readouterr().err
