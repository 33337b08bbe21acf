"""A person's dataset module: what loads, and the page for each way that it can be wrong."""

import re
import sys
import textwrap

import pytest
import torch

from sanarl.config import load as load_config
from sanarl.data.module import checked_rl, checked_sft, known_modules, load
from sanarl.errors import UserError

GOOD = """
import torch
def get_dataset(config):
    if config.train.train_policy.type == "sft":
        return [{"prompt": "a", "media": torch.zeros(1, 3, 64, 64)}, {"prompt": "b", "media": torch.ones(1, 3, 64, 64)}]
    return [{"prompt": "a"}, {"prompt": "b", "metadata": {"k": 1}}]
"""


@pytest.fixture(autouse=True)
def _import_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def sft():
    return load_config("tiny-image-sft").config


@pytest.fixture
def nft():
    return load_config("tiny-image-nft").config


def write(tmp_path, source, name="mine.py"):
    (tmp_path / name).write_text(textwrap.dedent(source))
    return str(tmp_path / name)


def page(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_file_loads_and_gives_checked_items(tmp_path, sft, nft):
    module = load(write(tmp_path, GOOD))
    pictures = module.train(sft)
    assert len(pictures) == 2
    assert [item["prompt"] for item in pictures] == ["a", "b"]
    assert pictures[-1]["media"].shape == (1, 3, 64, 64)
    assert list(module.train(nft)) == [{"prompt": "a", "metadata": {}}, {"prompt": "b", "metadata": {"k": 1}}]
    assert module.validation(nft) is None


def test_a_dotted_module_of_the_working_directory(tmp_path, monkeypatch, nft):
    (tmp_path / "my_package").mkdir()
    write(tmp_path / "my_package", GOOD, "my_prompts.py")
    monkeypatch.chdir(tmp_path)
    assert len(load("my_package.my_prompts").train(nft)) == 2


def test_a_file_finds_its_neighbours_and_two_of_one_name_stay_apart(tmp_path, nft):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, f"PROMPTS = ['{folder}']", f"helper_{folder}.py")
        source = (
            f"from helper_{folder} import PROMPTS\ndef get_dataset(config): return [{{'prompt': p}} for p in PROMPTS]"
        )
        write(tmp_path / folder, source)
    modules = [load(str(tmp_path / folder / "mine.py")) for folder in ("one", "two")]
    assert [m.train(nft)[0]["prompt"] for m in modules] == ["one", "two"]


def test_the_name_that_cosmos_uses():
    assert load("cosmos_rl.tools.dataset.diffusion_nft").name == "sanarl.datasets.diffusion_nft"
    assert known_modules() == ["sanarl.datasets." + n for n in ("diffusers_dataset", "diffusion_nft", "shapes")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sanarl.datasets.shape", "there is no such module; did you mean 'sanarl.datasets.shapes'?"),
        ("shapes_", "did you mean 'sanarl.datasets.shapes'?"),
        ("cosmos_rl.tools.dataset.gsm8k", "dataset module sanarl.datasets.gsm8k (for cosmos_rl.tools.dataset.gsm8k)"),
        ("a..b", "'a..b' is not the name of a module"),
        ("", "'' is not the name of a module"),
        ("json", "json has no function get_dataset(config)"),
        ("no/such/file.py", "dataset module no/such/file.py: found nothing; accepted: a Python file"),
        ("sanarl/data", "found a folder; accepted: a Python file"),
    ],
)
def test_names_that_lead_nowhere(name, expected):
    assert expected in page(load, name)


def test_a_near_miss_of_the_function_and_of_the_file(tmp_path):
    path = write(tmp_path, "def get_datasets(config): return []")
    assert "did you mean 'get_datasets'?" in page(load, path)
    assert f"did you mean {path!r}?" in page(load, str(tmp_path / "mime.py"))
    assert "get_dataset is int 3; accepted: a function" in page(load, write(tmp_path, "get_dataset = 3", "b.py"))


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        ("x = 1\nimport no_such_thing_at_all", 2, "ModuleNotFoundError: No module named 'no_such_thing_at_all'"),
        ("x = 1\n\ndef broken(:\n", 3, "SyntaxError"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)", 2, "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_shows_its_line(tmp_path, source, line, expected):
    path = write(tmp_path, source)
    text = page(load, path)
    assert f"{path}:{line}: {expected}" in text


def test_an_error_in_get_dataset_shows_its_line_and_keeps_its_cause(tmp_path, nft):
    path = write(tmp_path, "import json\ndef get_dataset(config):\n    return json.loads('{')\n")
    with pytest.raises(UserError) as caught:
        load(path).train(nft)
    text = str(caught.value)
    assert "get_dataset(config) failed" in text
    assert re.search(r"decoder\.py:\d+: JSONDecodeError", text)
    assert f"(called from {path}:3)" in text
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return None", "returned None without __len__ and __getitem__; accepted: a sequence"),
        ("return ({'prompt': p} for p in 'ab')", "without __len__ and __getitem__"),
        ("return {'a': 1}", "returned dict {'a': 1}; accepted: a sequence"),
        ("return 'prompts.txt'", "returned str 'prompts.txt'; accepted: a sequence"),
        ("return []", "returned an empty list; accepted: at least one item"),
        ("return list", "returned the class list; accepted: a sequence"),
        ("return set('a')", "without __getitem__"),
    ],
)
def test_get_dataset_must_return_a_filled_sequence(tmp_path, nft, body, expected):
    assert expected in page(load(write(tmp_path, f"def get_dataset(config): {body}")).train, nft)


def test_get_dataset_that_exits_does_not_end_the_run_with_its_code(tmp_path, nft):
    path = write(tmp_path, "import sys\ndef get_dataset(config):\n    sys.exit(0)\n")
    assert f"{path}:3: SystemExit: 0" in page(load(path).train, nft)


def test_get_dataset_of_the_wrong_signature(tmp_path, nft):
    assert "get_dataset() takes 0 positional" in page(load(write(tmp_path, "def get_dataset(): return [1]")).train, nft)


def test_an_item_that_cannot_be_read_is_named(tmp_path, nft):
    source = """
    class Set:
        def __len__(self): return 3
        def __getitem__(self, i): return {"prompt": "abc"[i] + self.missing}
    def get_dataset(config): return Set()
    """
    path = write(tmp_path, source)
    items = load(path).train(nft)
    text = page(items.__getitem__, -1)
    assert text.startswith(f"{path}: item 2 of 3 could not be read")
    assert f"{path}:4: AttributeError" in text
    with pytest.raises(IndexError):
        items[3]


def test_validation_takes_prompts_for_every_task(tmp_path, sft, nft):
    module = load(write(tmp_path, GOOD + "\ndef get_val_dataset(config): return [{'prompt': 'v'}, {'prompt': ''}]"))
    for config in (sft, nft):
        items = module.validation(config)
        assert items[0] == {"prompt": "v", "metadata": {}}
        assert "get_val_dataset: item 1, key 'prompt': found the blank prompt ''" in page(items.__getitem__, 1)


PICTURE = torch.full((1, 3, 8, 6), 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_good_pictures_come_back_in_float32(dtype):
    item = checked_sft({"prompt": "a", "media": PICTURE.to(dtype), "extra": 1}, 4, "m", ((8, 6),))
    assert sorted(item) == ["media", "prompt"]
    assert item["media"].dtype == torch.float32
    assert torch.equal(item["media"], PICTURE)


def test_pictures_of_eight_bits_stay_so():
    eight = torch.arange(144, dtype=torch.uint8).reshape(1, 3, 8, 6)
    found = checked_sft({"prompt": "a", "media": eight}, 0, "m", ((8, 6),))["media"]
    assert found.dtype == torch.uint8
    assert torch.equal(found, eight)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (3, "found int 3; accepted: a dict"),
        (("a", PICTURE), "found tuple"),
        ({"media": PICTURE}, "key 'prompt': found the keys ['media']"),
        ({"prompt": None, "media": PICTURE}, "key 'prompt': found None; accepted: a string"),
        ({"prompt": ["a"], "media": PICTURE}, "key 'prompt': found list"),
        ({"prompt": " ", "media": PICTURE}, "key 'prompt': found the blank prompt ' '"),
        ({"prompt": "a"}, "key 'media': found the keys ['prompt']"),
        ({"prompt": "a", "media": PICTURE.numpy()}, "key 'media': found ndarray of shape (1, 3, 8, 6)"),
        ({"prompt": "a", "media": (PICTURE[0] * 255).to(torch.uint8)}, "found a uint8 tensor of shape (3, 8, 6)"),
        ({"prompt": "a", "media": PICTURE.long()}, "found a int64 tensor"),
        ({"prompt": "a", "media": PICTURE[0]}, "found a float32 tensor of shape (3, 8, 6)"),
        ({"prompt": "a", "media": PICTURE[0]}, "add the frame axis with media[None]"),
        ({"prompt": "a", "media": PICTURE.transpose(2, 3)}, "found a float32 tensor of shape (1, 3, 6, 8)"),
        ({"prompt": "a", "media": PICTURE.permute(0, 2, 3, 1)}, "accepted: a tensor (F, 3, 8, 6), floating-point"),
        ({"prompt": "a", "media": PICTURE[:0]}, "found a float32 tensor of shape (0, 3, 8, 6)"),
        ({"prompt": "a", "media": PICTURE * torch.nan}, "found NaN or infinity"),
        ({"prompt": "a", "media": PICTURE * 400}, "found values from 200 to 200; accepted"),
        ({"prompt": "a", "media": PICTURE * 400}, "divide by 255"),
        ({"prompt": "a", "media": -PICTURE}, "found values from -0.5 to -0.5"),
        ({"prompt": "a", "media": -PICTURE}, "add 1 and halve"),
    ],
)
def test_pages_for_sft_items(item, expected):
    text = page(checked_sft, item, 7, "my.module", ((8, 6),))
    assert text.startswith("my.module: get_dataset: item 7")
    assert expected in text


def test_the_number_of_frames():
    clip = {"prompt": "a", "media": PICTURE.expand(5, 3, 8, 6)}
    assert checked_sft(clip, 0, "m", ((8, 6),), frames=5)["media"].shape == (5, 3, 8, 6)
    text = page(lambda: checked_sft(clip, 0, "m", ((8, 6),), frames=1))
    assert "found a float32 tensor of shape (5, 3, 8, 6); accepted: a tensor (1, 3, 8, 6), floating-point" in text


def test_any_size_is_accepted_when_none_is_given():
    assert checked_sft({"prompt": "a", "media": PICTURE}, 0, "m")["media"].shape == (1, 3, 8, 6)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("a prompt", "found str 'a prompt'; accepted: a dict"),
        ({}, "key 'prompt': found the keys []"),
        ({"prompt": b"a"}, "key 'prompt': found bytes"),
        ({"prompt": "a\ud83d"}, "half of a surrogate pair"),
        ({"prompt": "a", "metadata": [1]}, "key 'metadata': found list [1]; accepted: a dict"),
        (
            {"prompt": "a", "tag": "counting"},
            "key 'tag': found a key that nothing reads; accepted: prompt and metadata",
        ),
    ],
)
def test_pages_for_rl_items(item, expected):
    text = page(checked_rl, item, 7, "my.module")
    assert text.startswith("my.module: get_dataset: item 7")
    assert expected in text


def test_rl_items():
    assert checked_rl({"prompt": "a"}, 0, "m") == {"prompt": "a", "metadata": {}}
    assert checked_rl({"prompt": "a", "metadata": None}, 0, "m") == {"prompt": "a", "metadata": {}}
    assert checked_rl({"prompt": "a", "media": PICTURE}, 0, "m") == {"prompt": "a", "metadata": {}}
