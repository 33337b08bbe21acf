"""Exports that diffusers loads: an adapter with its prefix and alpha, or the whole pipeline."""

from collections.abc import Sequence
from pathlib import Path

from peft import get_peft_model_state_dict
from torch import Tensor

from sanarl.errors import UserError
from sanarl.files import complete_folder
from sanarl.models.adapter import NAME
from sanarl.models.policy import Policy


def export(policy: Policy, values: Sequence[Tensor], folder: Path, card: str) -> None:
    """Write the policy with ``values`` into ``folder``, completely or not at all.

    With an adapter: ``pytorch_lora_weights.safetensors``, float32, keys prefixed ``transformer.`` and the adapter's
    configuration (rank, alpha) in its metadata, for ``pipe.load_lora_weights``. Without one: a pipeline folder in the
    dtype of its parts, for ``from_pretrained``. ``card`` becomes README.md.

    Raises:
        UserError: when the disk does not take it.
    """
    try:
        with complete_folder(folder) as partial:
            _write(policy, values, partial)
            (partial / "README.md").write_text(card, encoding="utf-8")
    except Exception as error:
        # safetensors and tokenizers are written in Rust and report a full disk with exceptions of their own.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise UserError(f"{folder}: the export could not be written: {error}") from error


def _write(policy: Policy, values: Sequence[Tensor], folder: Path) -> None:
    transformer, pipeline = policy.model.transformer, policy.model.pipeline
    adapters = getattr(transformer, "peft_config", {})
    if NAME not in adapters:
        with policy.using(values):
            pipeline.save_pretrained(folder)
        return
    # PEFT names the keys; the values come from the masters, in full precision.
    by_name = dict(zip(policy.names, values, strict=True))
    names = {n.replace(f".{NAME}.", "."): n for n in policy.names}
    layers = get_peft_model_state_dict(transformer, adapter_name=NAME)
    assert layers.keys() == names.keys(), "the adapter's keys and the policy's names differ"
    pipeline.save_lora_weights(
        folder,
        transformer_lora_layers={k: by_name[names[k]].detach().cpu().contiguous() for k in layers},
        transformer_lora_adapter_metadata=adapters[NAME].to_dict(),
    )
