"""The model card that goes with an export."""

from dataclasses import dataclass
from importlib.metadata import version

from sanarl import __version__
from sanarl.config import Config
from sanarl.runtime.session import Progress

PACKAGES = ("torch", "diffusers", "transformers", "peft")


@dataclass(frozen=True)
class Card:
    """What a card says of a run, before it is known how far the run has come."""

    config: Config
    flow_shift: float
    pipeline: str
    """Name of the diffusers pipeline that the model is of."""

    def text(self, progress: Progress) -> str:
        """The card as Markdown with the hub's front matter.

        Args:
            progress: steps and optimiser updates taken, held-out rewards.
        """
        config = self.config
        base = config.policy.model_name_or_path
        hub = _hub_id(config)
        lora = config.policy.lora
        tags = ["sanarl", f"text-to-{config.modality}", *(["lora"] if lora is not None else [])]
        rows = [
            ("task", config.task),
            ("base model", base),
            ("steps, optimiser updates", f"{progress.step}, {progress.updates}"),
            ("learning rate", f"{config.train.optm_lr:g}"),
            ("samples a step", str(config.samples_per_step)),
            ("precision", f"{config.train.param_dtype} compute, {config.train.master_dtype} masters"),
            ("weights", "moving average" if config.train.ema_enable else "last step"),
        ]
        if lora is not None:
            rows.append(("adapter", f"rank {lora.r}, alpha {lora.lora_alpha:g}"))
        if config.is_rl:
            grpo = config.grpo
            weights = [(f.name, f.weight) for f in grpo.remote_reward.reward_fns if f.weight > 0]
            weights = weights if grpo.use_remote_reward else list(grpo.reward_function.items())
            rows.append(("rewards", ", ".join(f"{name} x {weight:g}" for name, weight in weights)))
            rows.append(("nft_beta", f"{config.policy.diffusers.nft_beta:g}"))
            rows.append(("kl_beta", f"{config.grpo.kl_beta:g}"))
        if progress.first_reward is not None:
            rows.append(
                (
                    "held-out reward, first and last evaluation",
                    f"{progress.first_reward:.4f}, {progress.last_reward:.4f}",
                )
            )
        rows.append(("made with", ", ".join([f"sanarl {__version__}", *(f"{p} {version(p)}" for p in PACKAGES)])))
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        return (
            f"---\nlibrary_name: diffusers\nbase_model: {hub}\nlicense: {self._licence}\n"
            f"tags: [{', '.join(tags)}]\n---\n"
            f"# {base}, post-trained with sanarl\n\n| | |\n|---|---|\n{table}\n\n"
            f"{self._licence_note}\n\n## Load\n```python\n{self._example()}```\n"
        )

    @property
    def _licence(self) -> str:
        return "apache-2.0" if self.config.is_tiny else "other"

    @property
    def _licence_note(self) -> str:
        if self.config.is_tiny:
            return "Licence: Apache-2.0, as the base model."
        return "Licence: these weights derive from the base model, and its licence applies to them."

    def _example(self) -> str:
        """Code that loads the export and samples as the trainer did."""
        config = self.config
        diffusers, sample = config.policy.diffusers, config.policy.diffusers.sample
        steps = sample.eval_num_steps if config.is_rl else sample.num_steps
        height, width = diffusers.inference_size
        base = config.policy.model_name_or_path
        if config.policy.lora is None:
            load = f'from diffusers import {self.pipeline}\n\npipe = {self.pipeline}.from_pretrained("PATH")\n'
        elif config.is_tiny:
            made = f'load_pipeline("{base}")'
            also = ""
            if diffusers.image_to_video:
                made, also = f"{self.pipeline}(**{made}.components)", f"from diffusers import {self.pipeline}\n"
            load = (
                f'{also}from sanarl.models.tiny import load_pipeline\n\npipe = {made}\npipe.load_lora_weights("PATH")\n'
            )
        elif config.is_native:
            half = '{"transformer": torch.bfloat16, "default": torch.bfloat16}'
            load = (
                "import torch\nfrom sanarl.models.native_files import pipeline\n\n"
                f'pipe = pipeline("{base}", None, "{config.policy.base_pipeline}", None, {half})\n'
                'pipe.load_lora_weights("PATH")\n'
            )
        else:
            load = (
                f"import torch\nfrom diffusers import {self.pipeline}\n\n"
                f'pipe = {self.pipeline}.from_pretrained("{base}", dtype=torch.bfloat16)\n'
                'pipe.load_lora_weights("PATH")\n'
            )
        own = ""
        if self.pipeline.startswith("Sana"):
            instruction = "" if diffusers.complex_human_instruction else ", complex_human_instruction=None"
            own = f"{instruction}, use_resolution_binning=False"
        shift = self.flow_shift if sample.flow_shift is None else sample.flow_shift
        clip = config.modality == "video"
        frames = f"frames={config.sample_frames}, " if clip else ""
        prompt = "a prompt" if diffusers.motion_score is None else f"a prompt motion score: {diffusers.motion_score}."
        call = (
            f'pipe("{prompt}", height={height}, width={width}, {frames}num_inference_steps={steps}, '
            f"guidance_scale={sample.guidance_scale:g},\n     max_sequence_length={diffusers.max_prompt_length}{own})"
        )
        if diffusers.image_to_video:
            call = call.replace("pipe(", 'pipe(load_image("first_frame.png"), ', 1)
        if clip:
            helpers = "export_to_video, load_image" if diffusers.image_to_video else "export_to_video"
            use = (
                f"from diffusers.utils import {helpers}\n\nclip = {call}.frames[0]\n"
                f'export_to_video(clip, "clip.mp4", fps={diffusers.fps:g})\n'
            )
        else:
            use = f'{call}.images[0].save("picture.png")\n'
        return f"{load}# Trained and evaluated with {sample.solver} steps at shift {shift:g}.\n{use}"


def _hub_id(config: Config) -> str:
    """What the hub is told of the base: a native checkpoint's repository, or where the rest of its pipeline is from."""
    name = config.policy.model_name_or_path
    if not config.is_native:
        return name
    if name.startswith("hf://"):
        return "/".join(name.removeprefix("hf://").split("/")[:2])
    return config.policy.base_pipeline or name
