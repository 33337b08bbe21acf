"""A reward that differs from picture to picture even for an untrained model, named by its path in the tests' TOML."""


def redness(media, _prompts, _metadata):
    """How much redder than green the first frame is, (B,)."""
    return (media[:, 0, 0] - media[:, 0, 1]).mean((1, 2))
