"""Chapter CAP: sow, perturb and capture."""
