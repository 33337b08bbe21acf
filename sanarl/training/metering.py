"""logging.report_mfu: the arithmetic of every step, against what the device could do."""

from sanarl.config import Config
from sanarl.models.flops import ForwardFlops
from sanarl.models.policy import Policy
from sanarl.runtime.meter import Meter, peak
from sanarl.runtime.session import Session
from sanarl.training.settings import DTYPES


def measure(policy: Policy, session: Session, config: Config) -> None:
    """Let the session log ``perf/tflops`` and ``perf/mfu`` of every step, and say against what."""
    reference = peak(session.world.device, DTYPES[config.train.param_dtype])
    session.meter = Meter(ForwardFlops(policy.model), config.policy.lora is None, reference)
    policy.on_pass = session.meter.saw
    session.console.line(f"perf/mfu is the share of {reference.tflops:.4g} TFLOP/s: {reference.source}")
