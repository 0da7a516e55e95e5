"""Chapter MOD: Modules and Pytrees."""
