"""Rewards scored by a service, for [train.train_policy.remote_reward] and [validation.remote_reward]."""

from pydantic import Field

from sanarl.config.schema.base import Count, Positive, Table, Text


class RewardFunction(Table):
    """One reward of the service."""

    name: Text
    """A reward that the service knows."""
    weight: float = 1.0
    """Factor in the sum; 0 or less skips it."""
    score_key: Text | None = None
    """Score to read from the answer, or several added ("vq_reward+mq_reward"); unset: the name, or what the protocol
    calls it (gen_eval_score, ocr_reward, overall_reward, no_score)."""
    url: Text | None = None
    """Service of this reward, http://HOST:PORT/api/reward; unset: that of the environment variables."""
    only_strict: bool | None = None
    """gen_eval: leave the published verdict out; unset: in training, not in evaluation."""
    clip_min: float = -5.0
    """Scores below are raised to this, before the weight."""
    clip_max: float = 5.0
    """Scores above are lowered to this, before the weight."""


class RemoteReward(Table):
    """How the service's scores become one reward."""

    scale: float = 1.0
    """Factor on the clipped sum."""
    reward_fns: tuple[RewardFunction, ...] = Field(default=())
    """The rewards that are summed."""
    reward_clip_min: float = -5.0
    """Sums below are raised to this."""
    reward_clip_max: float = 5.0
    """Sums above are lowered to this."""
    batch_size: Count = 1
    """Samples of one request."""
    deadline_s: Positive = 600.0
    """Seconds from a request that the service accepted to its scores; then it is sent again, at most twice."""
    patience_s: Positive = 1800.0
    """Seconds to wait for a service that does not answer or has no room; then the run ends and can be resumed."""
