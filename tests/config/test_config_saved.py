"""The configuration of a run's folder is the one that the run was made with."""

import json

import pytest

from sanarl.config import ConfigError, load, load_saved, preset_names


def saved(config, folder):
    document = {"identity": config.identity(), "config": config.model_dump(mode="json")}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


@pytest.mark.parametrize("preset", preset_names())
def test_what_was_written_is_read(preset, tmp_path):
    # Reference: the configuration that was written.
    config = load(preset).config
    found = load_saved(saved(config, tmp_path)).config
    assert found == config
    assert found.identity() == config.identity()


def test_arguments_go_on_top_and_are_checked(tmp_path):
    folder = saved(load("tiny-image-nft").config, tmp_path)
    assert load_saved(folder, ["train.seed=3"]).config.train.seed == 3
    with pytest.raises(ConfigError, match=r"--set policy\.diffusers\.sample\.solver=eular: .*accepted"):
        load_saved(folder, ["policy.diffusers.sample.solver=eular"])


def test_a_configuration_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read: No such file or directory"):
        load_saved(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": 3}', '{"config": {}'])
def test_what_is_no_configuration_of_a_run(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json: holds no configuration of a run"):
        load_saved(tmp_path)
