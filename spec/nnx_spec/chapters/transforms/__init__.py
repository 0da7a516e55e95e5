"""Chapter TRX: transforms of functions that take and change objects, in every mode."""
