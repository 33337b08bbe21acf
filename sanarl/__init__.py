"""sanarl post-trains SANA image and video diffusion models: fine-tuning, LoRA and reinforcement learning."""

__version__ = "0.1.0"
