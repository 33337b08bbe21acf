"""Reference: the tensors that were put in."""

import threading

import pytest
import torch

from sanarl.data.store import Store, fingerprint
from sanarl.errors import UserError

KEY = "ab" + "0" * 62


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_what_is_put_comes_back(tmp_path, dtype):
    values = {"a": torch.arange(6).reshape(2, 3).to(dtype), "b": torch.zeros(0, 4, dtype=dtype)}
    store = Store(tmp_path / "cache")
    assert store.get(KEY) is None
    store.put(KEY, values)
    found = Store(tmp_path / "cache").get(KEY)
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], values[name]) and found[name].dtype == dtype for name in values)


def test_views_are_kept_alone(tmp_path):
    """A row of a batch must not bring the batch along."""
    store = Store(tmp_path)
    store.put(KEY, {"row": torch.zeros(1000, 1000)[3]})
    assert sum(f.stat().st_size for f in tmp_path.rglob("*.safetensors")) < 5000


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 100, b"\xff" * 9])
def test_damaged_files_are_as_good_as_none(tmp_path, content):
    store = Store(tmp_path)
    store.put(KEY, {"a": torch.ones(3)})
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(content)
    assert store.get(KEY) is None
    store.put(KEY, {"a": torch.ones(3)})
    assert torch.equal(store.get(KEY)["a"], torch.ones(3))


def test_many_writers_leave_one_whole_file(tmp_path):
    stores = [Store(tmp_path) for _ in range(8)]
    threads = [threading.Thread(target=s.put, args=(KEY, {"a": torch.ones(1000)})) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([f for f in tmp_path.rglob("*") if f.is_file()]) == 1
    assert torch.equal(stores[0].get(KEY)["a"], torch.ones(1000))


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Store(tmp_path / "file" / "cache")
    store = Store(tmp_path / "cache")
    (tmp_path / "cache" / "ab").write_text("")
    with pytest.raises(UserError, match=r"data\.cache: .* cannot be written"):
        store.put(KEY, {"a": torch.ones(1)})


def test_a_fingerprint_depends_on_everything():
    x = torch.arange(6.0)
    parts = [
        [x],
        [x.reshape(2, 3)],
        [x.to(torch.float64)],
        [x + 1e-7],
        ["a"],
        ["a", "b"],
        ["ab"],
        ["b", "a"],
        ["a", x],
        [x, "a"],
        [torch.zeros(2)],
        [torch.zeros(2), ""],
        [],
    ]
    found = [fingerprint(part) for part in parts]
    assert len(set(found)) == len(found)
    assert fingerprint([x.reshape(3, 2).T.reshape(6)]) == fingerprint([x.reshape(3, 2).T.reshape(6).clone()])
    assert fingerprint([torch.tensor(1.0)]) != fingerprint([torch.tensor([1.0])])
