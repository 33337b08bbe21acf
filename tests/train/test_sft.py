import pytest
import torch

from sanarl.algorithms import sft
from sanarl.config import load
from sanarl.data.order import picks
from sanarl.datasets.shapes import get_dataset
from sanarl.models.load import load_model
from sanarl.training import modelling, settings
from sanarl.training.cached import encoded


def test_a_step_taken_apart(train, tmp_path):
    # Reference: the second step of a run made again from its first checkpoint: items 6 to 11 of the run's order, the
    # weighted mean of the terms, and the learning rate by hand (2 of 3 warm-up updates from 0 to 1e-2).
    overrides = ["train.ckpt.save_freq=1", "train.max_num_steps=2", "train.train_policy.dataloader_seed=5"]
    run = train("sft", *overrides)
    config = load(tmp_path / "run.toml", overrides).config
    model = load_model(modelling.model_settings(config), torch.device("cpu"))
    policy = modelling.build_policy(config, model)
    checkpoint = run.folder / "checkpoints" / "step_1" / "state.pt"
    policy.load_state_dict(torch.load(checkpoint, weights_only=True)["policy"])
    dataset = get_dataset(config)
    items = [dataset[i] for i in picks(len(dataset), 6, 6, 5, True)]
    found = sft.terms(
        policy,
        encoded(model, items, config.sft.mini_batch),
        [item["prompt"] for item in items],
        torch.arange(6),
        settings.sft_setup(config).settings,
        (0, 2),
    )
    line = run.metrics[2]
    assert line["loss"] == pytest.approx(sum(term.loss.item() * term.weight for term in found), rel=1e-5)
    assert line["lr"] == pytest.approx(1e-2 * 2 / 3)
    assert line["step"] == 2
