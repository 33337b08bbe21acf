"""What a run takes of its card: predicted, planned, and explained when it is not enough.

passes -> footprints -> prediction -> planning; shortage is the page when memory runs out.
"""
