"""Chapter FLT: filters."""
