"""Rewards: what a picture is worth."""
