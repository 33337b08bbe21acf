"""Says whether this interpreter finds sanarl."""

import importlib.util

print("sanarl" if importlib.util.find_spec("sanarl") else "no sanarl")
