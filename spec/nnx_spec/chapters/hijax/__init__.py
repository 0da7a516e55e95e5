"""Chapter HJX: hijax Variables."""
