"""Chapter GRA: graph mode and graph updates."""
