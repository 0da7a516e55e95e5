"""Chapter VAR: Variables."""
