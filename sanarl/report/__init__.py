"""Reports: what runs have written, as one page that needs nothing else. Imports no torch."""
