"""Says whether this interpreter finds sanarl; an editable install leaves a folder of that name without the modules."""

import importlib.util

print("sanarl" if importlib.util.find_spec("sanarl") and importlib.util.find_spec("sanarl.errors") else "no sanarl")
