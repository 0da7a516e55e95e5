"""JAX's transforms, for functions of Modules and Variables; `core.py` says how they work."""
