"""Models behind one velocity(): families, adapters, loading, export."""
