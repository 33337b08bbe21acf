"""``python -m sanarl``."""

from sanarl.cli import main

main()
