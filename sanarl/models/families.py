"""The table of model families: the pipeline class that a checkpoint names -> what wraps it, and what it makes."""

from importlib import import_module
from typing import Any, Literal, NamedTuple

from sanarl.errors import UserError

Modality = Literal["image", "video"]


class Family(NamedTuple):
    """Where a family's class is, imported on use, and what the family makes."""

    pipeline: str
    path: str
    modality: Modality
    preset: str
    """The preset whose sampling settings a model of the family has."""

    def check(self, asked: Modality, name: str) -> None:
        """That a model named ``name`` makes what was asked for.

        Raises:
            UserError: when it does not.
        """
        if self.modality != asked:
            raise UserError(
                f"policy.diffusers.is_video: {str(asked == 'video').lower()}, but {name} is a {self.pipeline}, "
                f"which makes {self.modality}"
            )

    def wrapper(self) -> Any:
        """The class that wraps a pipeline of this family."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)


FAMILIES = {
    family.pipeline: family
    for family in (
        Family("SanaPipeline", "sanarl.models.sana:Sana", "image", "sana-image-sft-lora"),
        Family("SanaVideoPipeline", "sanarl.models.sana:Sana", "video", "sana-video-sft-lora"),
        Family("SanaImageToVideoPipeline", "sanarl.models.sana:Sana", "video", "sana-video-sft-lora"),
        Family("StableDiffusion3Pipeline", "sanarl.models.sd3:StableDiffusion3", "image", "sd3-image-sft-lora"),
        Family("FluxPipeline", "sanarl.models.flux:Flux", "image", "flux1-image-sft-lora"),
    )
}
