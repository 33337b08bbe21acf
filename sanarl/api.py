"""The Python API: what the command line does, as functions."""

from collections.abc import Sequence
from pathlib import Path

from sanarl.config import Config, Loaded, load

MADE_IN_PYTHON = "# This run was started from Python; config.json beside this file has every value.\n"


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a configuration.

    Args:
        source: a TOML file, or the name of a preset with or without .toml.
        overrides: ``key=value`` as for ``--set``; values are TOML.

    Raises:
        ConfigError: with every fault at once.
    """
    return load(source, overrides).config


def train(config: Config, dataset_module: str | None = None, resume: str | None = None) -> Path:
    """Run a configuration in this process (one rank; start several with ``sanarl train --nproc`` or torchrun).

    Args:
        config: from ``load_config``.
        dataset_module: dotted module or .py file with ``get_dataset(config)``; None: the task's default.
        resume: ``auto``, ``never``, a run's folder or a checkpoint; None: what train.resume says.

    Returns:
        The run's folder: metrics.jsonl, checkpoints/, safetensors/, samples/.

    Raises:
        UserError: for whatever the caller can mend.
        InterruptedError: when Ctrl-C or SIGTERM ended the run early; what was due has been saved.
    """
    from sanarl.training.run import run

    outcome = run(Loaded(config, (), Path("python"), MADE_IN_PYTHON), dataset_module, resume)
    if outcome.exit_code:
        raise InterruptedError(f"{outcome.folder}: the run was stopped by a signal; go on with resume='auto'")
    assert outcome.folder is not None, "a run that is no dry run has a folder"
    return outcome.folder
