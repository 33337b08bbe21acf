"""ImageReward: human preference by a BLIP model, with the image-reward package under transformers 4.5x and 5."""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sanarl.errors import UserError
from sanarl.rewards import weights
from sanarl.rewards.frames import dtype_named, framewise, over_frames_named
from sanarl.rewards.packages import required

_TOKENS = 35  # the package's longest text


class ImageReward:
    """ImageReward v1.0 (Xu et al. 2023, https://github.com/zai-org/ImageReward): which picture people prefer.

    Scale: standardised over the authors' data (mean 0, deviation 1), usually -2.3 to 2. Preprocessing as published:
    the shorter side is resized to 224 (bicubic, by Pillow), centre crop, CLIP's normalisation; texts are cut at 35
    tokens.

    Args:
        model_path: ImageReward.pt or its folder, with med_config.json beside it, or a hub id; None: searched.
        tokenizer_path: Folder or hub id of bert-base-uncased's vocabulary; None: searched.
        device: Where to compute; None: where the pictures are.
        dtype: float32, bfloat16 or float16.
        batch_size: Pictures of one forward pass.
        frames: Frames of a clip that are scored.
        over_frames: What their scores become: "mean" or "min".
        blocks: Of the picture's encoder; published weights have 24.
    """

    def __init__(
        self,
        model_path: str | None = None,
        tokenizer_path: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int = 16,
        frames: int = 8,
        over_frames: str = "mean",
        blocks: int = 24,
    ):
        checkpoint = weights.file(weights.IMAGE_REWARD, "imagereward", model_path)
        config = checkpoint.with_name("med_config.json")
        if not config.is_file():
            config = weights.folder(weights.IMAGE_REWARD, "imagereward", model_path) / "med_config.json"
        vocabulary = weights.folder(weights.BERT_TOKENIZER, "imagereward", tokenizer_path)
        self.dtype = dtype_named(dtype)
        self.device = None if device is None else torch.device(device)
        self.model = construct(config, vocabulary, blocks)
        _load(self.model, checkpoint)
        self.model.eval().requires_grad_(False).to(self.dtype)
        self.batch_size, self.frames, self.over = batch_size, frames, over_frames_named(over_frames)

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Tensor:  # noqa: ARG002
        """(B,) float32 for media (B, F, 3, H, W) in [0, 1]; clips are scored frame by frame."""
        return framewise(media, prompts, self.frames, self.batch_size, self._score, self.over)

    def _score(self, frames: Tensor, prompts: list[str]) -> Tensor:
        from PIL import Image

        device = self.device or frames.device
        if next(self.model.parameters()).device != device:
            self.model.to(device).device = device  # the package's own attribute
        pictures = [Image.fromarray(f) for f in frames.permute(0, 2, 3, 1).cpu().numpy()]
        pixels = torch.stack([self.model.preprocess(picture) for picture in pictures]).to(device, self.dtype)
        text = self.model.blip.tokenizer(
            prompts, padding="max_length", truncation=True, max_length=_TOKENS, return_tensors="pt"
        ).to(device)
        return self.model.score_gard(text.input_ids, text.attention_mask, pixels)[:, 0]


def _load(model: Any, checkpoint: Path) -> None:
    """Take the checkpoint's values; the published file lacks nothing but buffers that are made anew."""
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        result = model.load_state_dict(state, strict=False)
    except Exception as error:
        raise UserError(f"imagereward: {checkpoint} is no checkpoint of ImageReward: {error}") from error
    lacking = [key for key in result.missing_keys if not key.endswith("position_ids")]
    if lacking:
        raise UserError(f"imagereward: {checkpoint} lacks {len(lacking)} values, the first {lacking[0]}")


def construct(config: Path, vocabulary: Path, blocks: int) -> Any:
    """The package's model with untrained weights.

    Args:
        config: med_config.json.
        vocabulary: Folder of bert-base-uncased's vocab.txt.
        blocks: Of the picture's encoder.
    """
    from transformers import BertTokenizer

    def tokenizer() -> Any:
        made = BertTokenizer.from_pretrained(vocabulary)
        made.add_special_tokens({"bos_token": "[DEC]"})
        made.add_tokens(["[ENC]"], special_tokens=True)
        return made

    def encoder(_name: str, size: int, *_: Any) -> tuple[Any, int]:
        vit = sys.modules["ImageReward.models.BLIP.vit"]
        return vit.VisionTransformer(img_size=size, patch_size=16, embed_dim=1024, depth=blocks, num_heads=16), 1024

    with _package() as module:
        blip = sys.modules["ImageReward.models.BLIP.blip_pretrain"]
        blip.init_tokenizer, blip.create_vit = tokenizer, encoder
        model = module.ImageReward(med_config=str(config), device="cpu")
    model.device = torch.device("cpu")
    return model


@contextmanager
def _package() -> Iterator[ModuleType]:
    """The module that defines the model, imported without the rest of the package, which asks for much more.

    While it is imported, names that its version of transformers had are supplied; afterwards everything is as before,
    so that someone who imports the package himself gets it whole.
    """
    required("timm", "timm", "imagereward")
    spec = importlib.util.find_spec("ImageReward")
    if spec is None or spec.submodule_search_locations is None:
        required("ImageReward", "image-reward", "imagereward", no_deps=True)
        raise UserError("imagereward: the module ImageReward is not that of the package image-reward")
    root = Path(next(iter(spec.submodule_search_locations)))
    supplied = {
        "ImageReward": _bare("ImageReward", root),
        "ImageReward.models": _bare("ImageReward.models", root / "models"),
    }
    if importlib.util.find_spec("fairscale") is None:
        supplied |= _fairscale()
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "ImageReward"}
    sys.modules.update(supplied)
    try:
        with warnings.catch_warnings(), _quiet(), _former_names():
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module("ImageReward.ImageReward")
                _adapt(sys.modules["ImageReward.models.BLIP.med"])
            except (ImportError, AttributeError) as error:
                text = f"the package image-reward does not import: {type(error).__name__}: {error}"
                raise UserError(f"imagereward: {text}") from error
            yield module
    finally:
        for name in [n for n in sys.modules if n in supplied or n.partition(".")[0] == "ImageReward"]:
            del sys.modules[name]
        sys.modules.update(before)


def _bare(name: str, folder: Path) -> ModuleType:
    """A package whose __init__ does not run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    return module


def _fairscale() -> dict[str, ModuleType]:
    """What the model imports of fairscale and never calls: checkpointing of activations."""
    names = ["fairscale", "fairscale.nn", "fairscale.nn.checkpoint", "fairscale.nn.checkpoint.checkpoint_activations"]
    modules = {name: _bare(name, Path()) for name in names}
    modules[names[-1]].checkpoint_wrapper = None  # type: ignore[attr-defined]
    return modules


@contextmanager
def _quiet() -> Iterator[None]:
    """The package turns transformers' logging down for everyone; turn it back."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _former_names() -> Iterator[None]:
    """transformers.modeling_utils with the names that moved to pytorch_utils or are gone."""
    from transformers import modeling_utils, pytorch_utils

    names = ("apply_chunking_to_forward", "prune_linear_layer", "find_pruneable_heads_and_indices")
    missing = [name for name in names if not hasattr(modeling_utils, name)]
    for name in missing:  # those that are gone cut heads off, which scoring never does
        setattr(modeling_utils, name, getattr(pytorch_utils, name, None))
    try:
        yield
    finally:
        for name in missing:
            delattr(modeling_utils, name)


def _adapt(med: ModuleType) -> None:
    """Give the package's BERT the methods that transformers 5 no longer has."""
    bert = med.BertPreTrainedModel
    supplied = {
        "get_head_mask": lambda _self, mask, layers: [None] * layers if mask is None else mask,
        "invert_attention_mask": lambda self, mask: _inverted(mask, self.dtype),
        "all_tied_weights_keys": {},
    }
    for name, value in supplied.items():
        if not hasattr(bert, name):
            setattr(bert, name, value)


def _inverted(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, S) or (B, L, S) of ones and zeros as what is added to attention scores: 0 or the lowest number."""
    wide = mask[:, None, :, :] if mask.ndim == 3 else mask[:, None, None, :]
    return (1 - wide.to(dtype)) * torch.finfo(dtype).min
