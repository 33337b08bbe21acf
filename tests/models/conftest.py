import pytest
import torch


@pytest.fixture(scope="session")
def ltx2():
    """A function that gives the smallest autoencoder of LTX-2: 8x down in time, 32x a side, random weights."""
    from diffusers import AutoencoderKLLTX2Video

    def make():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            vae = AutoencoderKLLTX2Video(
                latent_channels=4,
                block_out_channels=(4, 8, 16, 32),
                decoder_block_out_channels=(8, 16, 32),
                layers_per_block=(1, 1, 1, 1, 1),
                decoder_layers_per_block=(1, 1, 1, 1),
                spatial_compression_ratio=32,
                temporal_compression_ratio=8,
            ).eval()
            vae.latents_mean.normal_()
            vae.latents_std.uniform_(0.5, 2)
        return vae

    return make
