"""Ranks, optimiser steps, checkpoints, run folders."""
