"""Sampling from a policy: rollouts and evaluation."""
