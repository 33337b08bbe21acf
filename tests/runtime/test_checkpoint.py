import json
import os
import resource

import pytest
import torch
from torch import nn

from sanarl.errors import UserError
from sanarl.runtime import checkpoint
from sanarl.runtime.checkpoint import complete, prune, read, restore, snapshot, write


@pytest.fixture
def state():
    """A module and an optimiser that has moved it."""
    torch.manual_seed(0)
    module = nn.Linear(20, 20)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    return {"module": module, "optimizer": optimizer}


def save(folder, step, identity, state):
    return write(folder, step, identity, snapshot(state))


def fresh():
    module = nn.Linear(20, 20)
    return {"module": module, "optimizer": torch.optim.AdamW(module.parameters(), lr=0.1)}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path, state):
    # Reference: the state that was saved, bit by bit.
    path = save(tmp_path, 3, "abc", state)
    assert path == tmp_path / "step_3"
    found = fresh()
    restore(path, "abc", found)
    assert torch.equal(found["module"].weight, state["module"].weight)
    for a, b in zip(found["optimizer"].state.values(), state["optimizer"].state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in b)
    assert names(path) == ["manifest.json", "state.pt"]


def test_a_snapshot_is_not_moved_by_further_training(tmp_path, state):
    # Reference: the state at the time of the snapshot, bit by bit.
    taken, weight = snapshot(state), state["module"].weight.detach().clone()
    averages = [s["exp_avg"].clone() for s in state["optimizer"].state.values()]
    state["module"](torch.ones(1, 20)).sum().backward()
    state["optimizer"].step()
    assert not torch.equal(state["module"].weight, weight)
    found = fresh()
    restore(write(tmp_path, 3, "abc", taken), "abc", found)
    assert torch.equal(found["module"].weight, weight)
    assert all(torch.equal(s["exp_avg"], a) for s, a in zip(found["optimizer"].state.values(), averages, strict=True))


def test_the_same_step_can_be_saved_twice(tmp_path, state):
    save(tmp_path, 3, "abc", state)
    with torch.no_grad():
        state["module"].weight.fill_(7)
    path = save(tmp_path, 3, "abc", state)
    found = fresh()
    restore(path, "abc", found)
    assert (found["module"].weight == 7).all()
    assert names(tmp_path) == ["step_3"]


@pytest.mark.parametrize("older", [True, False])
def test_a_full_disk_leaves_what_was_there(tmp_path, state, older):
    # The operating system refuses files beyond 2 KiB, as a full disk would.
    if older:
        save(tmp_path, 3, "abc", state)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        with pytest.raises(UserError, match=r"step_3: the checkpoint could not be written: .*earlier ones are"):
            save(tmp_path, 3, "abc", state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_an_error_between_the_files_leaves_nothing(tmp_path, state, monkeypatch):
    def fails(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint.parts, "fingerprint", fails)
    with pytest.raises(UserError, match="Input/output error"):
        save(tmp_path, 3, "abc", state)
    assert names(tmp_path) == []


def test_folders_that_are_no_checkpoints_are_not_seen(tmp_path, state):
    for step in (2, 10, 9):
        save(tmp_path, step, "abc", state)
    for name in ("step_x", ".partial-step_11", "step_", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_99").write_text("a file")
    assert [p.name for p in complete(tmp_path)] == ["step_2", "step_9", "step_10"]
    assert complete(tmp_path / "nowhere") == []


def damage(path, kind):
    state, manifest = path / "state.pt", path / "manifest.json"
    raw, table = state.read_bytes(), json.loads(manifest.read_text())
    match kind:
        case "cut short":
            state.write_bytes(raw[: len(raw) // 2])
        case "one bit":
            state.write_bytes(raw[:500] + bytes([raw[500] ^ 1]) + raw[501:])
        case "no state":
            state.unlink()
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_text(manifest.read_text()[:20])
        case "manifest is a list":
            manifest.write_text("[1, 2]")
        case "another format":
            manifest.write_text(json.dumps(table | {"format": "other-2"}))
        case "no hash":
            del table["sha256"]
            manifest.write_text(json.dumps(table))
        case "no identity":
            del table["identity"]
            manifest.write_text(json.dumps(table))


KINDS = ["cut short", "one bit", "no state", "no manifest", "half a manifest", "manifest is a list", "another format"]


@pytest.mark.parametrize("kind", [*KINDS, "no hash", "no identity"])
def test_a_damaged_checkpoint_is_refused(tmp_path, state, kind):
    path = save(tmp_path, 3, "abc", state)
    damage(path, kind)
    with pytest.raises(UserError, match=r"step_3: this checkpoint .*--resume PATH, or start anew with --resume never"):
        read(path, "abc")


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    class Part:
        def state_dict(self):
            return {"x": Evil()}

    path = save(tmp_path, 3, "abc", {"part": Part()})
    with pytest.raises(UserError, match="cannot be used"):
        read(path, "abc")
    assert not (tmp_path / "made").exists()


def test_a_foreign_checkpoint_is_refused(tmp_path, state):
    path = save(tmp_path, 3, "abc", state)
    with pytest.raises(UserError, match="belongs to a run with another configuration"):
        restore(path, "xyz", state)


def test_parts_that_do_not_fit_are_named(tmp_path, state):
    path = save(tmp_path, 3, "abc", state)
    with pytest.raises(UserError, match="its 'missing' does not fit"):
        restore(path, "abc", {**state, "missing": state["module"]})
    with pytest.raises(UserError, match=r"its 'module' does not fit this run: .*\s+size mismatch"):
        restore(path, "abc", {"module": nn.Linear(3, 3)})


@pytest.mark.parametrize(("keep", "left"), [(2, ["step_9", "step_10"]), (5, None), (-1, None), (0, None)])
def test_pruning_keeps_the_newest(tmp_path, state, keep, left):
    for step in (1, 10, 9, 2):
        save(tmp_path, step, "abc", state)
    prune(tmp_path, keep, best=0)
    assert [p.name for p in complete(tmp_path)] == (left or ["step_1", "step_2", "step_9", "step_10"])
