"""What the cases share: runs of one step, and what can be seen of a run from outside."""

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
QUICK = (
    "validation.enable=false",
    "train.ckpt.export_safetensors=false",
    "train.ckpt.save_freq=1000",
    "train.ema_enable=false",
    "train.optm_warmup_steps=0",
    'train.optm_decay_type="none"',
    "train.max_num_steps=1",
)
"""One optimiser step (two of NFT), saved at its end, without evaluation and export."""
STILL = "train.optm_lr=1e-30"
"""No value moves."""
PLAIN = (
    "train.train_policy.batch_size_per_optimize=12",
    "train.train_policy.kl_beta=0.0",
    "policy.diffusers.timesteps_fraction=0.1",
)
"""NFT with one optimiser step and one forward pass with gradients for a mini-batch; all others sample."""


def pytest_configure(config):
    """Register the mark of a case."""
    config.addinivalue_line("markers", "honours(*keys): fails when one of these keys is ignored")


@dataclass
class Lab:
    """Tiny runs and what goes before them."""

    toml: object
    run_text: object
    parent: Path
    frames: int = 1
    numbers: object = field(default_factory=count)
    items = str(HERE / "items.py")
    still, plain = STILL, PLAIN

    def __post_init__(self):
        self.quick = cache(self.fresh)

    def fresh(self, task, *overrides, module=None, into=None, resume="never"):
        """A run of one step, with overrides; ``quick`` is the same, made once for equal arguments."""
        into = into or self.parent / str(next(self.numbers))
        return self.run_text(self.toml(task, into, self.frames), into, *QUICK, *overrides, module=module, resume=resume)

    def loaded(self, task, *overrides):
        """The configuration with its notes."""
        from sanarl.config import load

        file = self.parent / "preset.toml"
        file.write_text(self.toml(task, self.parent / "out", self.frames), encoding="utf-8")
        return load(file, (*QUICK, *overrides))

    def idle(self, task, *overrides):
        """The keys that are said to have no effect."""
        said = [note.text for note in self.loaded(task, *overrides).notes if note.text.startswith("no effect here: ")]
        return said[0].partition(": ")[2].split(", ") if said else []

    def parts(self, task, *overrides, module=None):
        """What a run is made of; a context."""
        from sanarl.runtime.world import World
        from sanarl.training import build

        return build.parts(self.loaded(task, *overrides).config, module, World())

    def learner(self, run):
        """Name -> trained value after the last step."""
        path = "/policy/sets/learner/"
        return {k.removeprefix(path): v for k, v in run.state(run.metrics[-1]["step"]).items() if k.startswith(path)}

    def equal(self, one, other):
        """Whether two runs ended with the same values, bit by bit."""
        mine, theirs = self.learner(one), self.learner(other)
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)

    def probe(self, name):
        """The name of a reward in probes.py."""
        return f"{HERE / 'probes.py'}:{name}"

    def rewarded(self, name, weight=1.0, table="train.train_policy"):
        """The override that asks for that reward alone."""
        return f'{table}.reward_function={{ "{self.probe(name)}" = {weight} }}'


@pytest.fixture(scope="session")
def labs(tmp_path_factory, toml, run_text):
    """A function that gives the ``Lab`` of runs with so many frames."""
    return cache(lambda frames: Lab(toml, run_text, tmp_path_factory.mktemp("lab"), frames))


@pytest.fixture(scope="module")
def lab(labs, frames):
    """See ``Lab``."""
    return labs(frames)


@dataclass
class Seen:
    """Passes through the transformer: (samples, with gradients, dtype); calls for text: (prompt, instruction)."""

    passes: list = field(default_factory=list)
    prompts: list = field(default_factory=list)

    def sizes(self, *, trained):
        """Samples of each pass with or without gradients."""
        return [size for size, with_gradients, _ in self.passes if with_gradients is trained]


@pytest.fixture
def seen(monkeypatch):
    """What runs of this test ask of diffusers."""
    from diffusers import SanaPipeline, SanaTransformer2DModel, SanaVideoPipeline, SanaVideoTransformer3DModel

    found = Seen()

    def watch(transformer, pipeline):
        forward, encode = transformer.forward, pipeline.encode_prompt

        def watched(self, x, *args, **named):
            found.passes.append((len(x), torch.is_grad_enabled(), x.dtype))
            return forward(self, x, *args, **named)

        def read(self, prompts, *args, **named):
            found.prompts.extend((prompt, named.get("complex_human_instruction")) for prompt in prompts)
            return encode(self, prompts, *args, **named)

        monkeypatch.setattr(transformer, "forward", watched)
        monkeypatch.setattr(pipeline, "encode_prompt", read)

    watch(SanaTransformer2DModel, SanaPipeline)
    watch(SanaVideoTransformer3DModel, SanaVideoPipeline)
    return found
