"""Chapter GRF: the functional API and aliasing."""
