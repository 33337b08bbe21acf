"""Guards in a run: they change no trained number, and go on after a break."""

import pytest

ON = ["guards.enable=true", "guards.freq=2", "guards.num_prompts=3", "guards.n_generation=2"]


def without(metrics):
    return [{k: v for k, v in line.items() if not k.startswith("guards/")} for line in metrics]


def test_guards_change_no_trained_number(train, baseline):
    # Reference: the run without them, bit by bit.
    plain, watched = baseline("nft"), train("nft", *ON)
    assert [line["step"] for line in watched.metrics if "guards/drift" in line] == [0, 2, 4]
    assert without(watched.metrics) == plain.metrics
    ours, wanted = watched.state(4), plain.state(4)
    assert ours.keys() == wanted.keys()
    assert all(str(ours[path]) == str(wanted[path]) for path in wanted)
    drifts = [line["guards/drift"] for line in watched.metrics if "guards/drift" in line]
    assert drifts[0] == 0 < drifts[1] < drifts[2]


@pytest.mark.parametrize("validation", ["true", "false"])
def test_guards_of_a_resumed_run(train, same, validation):
    # Reference: the same run without a break; what it started from is looked at again.
    keys = [*ON, f"validation.enable={validation}"]
    whole = train("nft", *keys, into="whole")
    parts = train("nft", *keys, into="parts")
    assert [line["step"] for line in whole.metrics] == [0, 1, 2, 3, 4]
    again = train("nft", *keys, into="parts", resume=str(parts.folder / "checkpoints" / "step_2"))
    same(again, whole)


def test_guards_are_on_unless_they_are_turned_off():
    from sanarl.config import load, preset_names

    for preset in preset_names():
        assert load(preset).config.guards.enable
