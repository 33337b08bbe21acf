"""A toy world of coloured shapes: captions, drawing, scoring."""
