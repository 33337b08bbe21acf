"""What the file of an adapter says of it: rank, scale and places, for a slot that it fits."""

from pathlib import Path

from sanarl.errors import UserError
from sanarl.models.adapter import LoraSettings
from sanarl.models.adapter_saved import saved


def described(path: Path, key: str) -> LoraSettings:
    """The slot that an adapter in a folder or file needs.

    Without a description ranks are those of the weights and alpha = r, as loaders assume.

    Args:
        path: as for :func:`sanarl.models.adapter_saved.saved`.
        key: what named it, for errors.

    Raises:
        UserError: when there is no such file, or it holds no LoRA of a transformer.
    """
    found = saved(path, key)
    ranks = {n.partition(".lora_A")[0]: value.shape[0] for n, value in found.values.items() if ".lora_A" in n}
    if not ranks:
        raise UserError(f"{key}: {found.file} holds no LoRA of a transformer (no lora_A among its tensors)")
    r = found.r or max(ranks.values())
    return LoraSettings(
        r=r,
        alpha=found.alpha or float(r),
        target_modules=sorted(ranks),
        use_rslora=found.use_rslora or False,
        r_pattern={name: rank for name, rank in ranks.items() if rank != r},
        alpha_pattern=found.alpha_pattern or {},
    )
