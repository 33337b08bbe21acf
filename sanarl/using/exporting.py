"""A run's values for other programs, with a proof that they arrived."""

import shutil
from pathlib import Path

from sanarl.errors import UserError
from sanarl.models.export import Target, export
from sanarl.models.load import load_transformer
from sanarl.models.proof import Proof, prove
from sanarl.runtime import checkpoint
from sanarl.runtime.session import Progress
from sanarl.training.card import Card
from sanarl.training.modelling import model_settings
from sanarl.using.subject import Subject

LOAD = "## Load\n"


def exported(subject: Subject, target: Target, folder: Path) -> Proof:
    """Write a run's values into ``folder``, load them again and compare; what fails is removed.

    Raises:
        UserError: when there is nothing trained, the folder is taken or cannot be written, or the proof fails.
    """
    if "trained" not in subject.values:
        raise UserError("--step 0 is the base itself: there is nothing to export")
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise UserError(f"--out {folder}: is not empty; choose another folder")
    trained, policy = subject.values["trained"], subject.policy
    export(policy, trained, folder, _card(subject, target), target, subject.model)
    settings = model_settings(subject.config)
    device = policy.model.transformer.device
    try:
        proof = prove(
            policy, trained, subject.values["base"], folder, target, lambda: load_transformer(settings, device)
        )
        proof.require(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return proof


def _card(subject: Subject, target: Target) -> str:
    """The card that the run wrote, or one of what is known; for PEFT with the code that PEFT needs."""
    assert subject.run is not None, "runs are exported"
    assert subject.step is not None, "a run has a step"
    written = subject.run.exports / f"step_{subject.step}" / "README.md"
    if written.is_file():
        text = written.read_text(encoding="utf-8")
    else:
        model = subject.policy.model
        card = Card(subject.config, model.flow_shift, type(model.pipeline).__name__)
        text = card.text(_progress(subject))
    if target == "peft":
        text = (
            text.partition(LOAD)[0]
            + LOAD
            + (
                "```python\nfrom peft import PeftModel\n\n"
                'pipe.transformer = PeftModel.from_pretrained(pipe.transformer, "PATH")\n```\n'
            )
        )
    return text


def _progress(subject: Subject) -> Progress:
    """What the checkpoint of that step says of the run."""
    assert subject.run is not None, "runs are exported"
    progress = Progress(step=subject.step or 0)
    saved = subject.run.saved_config()
    path = subject.run.checkpoints / f"step_{subject.step}"
    if path.is_dir() and saved is not None:
        progress.load_state_dict(checkpoint.read(path, saved[0])["progress"])
    return progress
