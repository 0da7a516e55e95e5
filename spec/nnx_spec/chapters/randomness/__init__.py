"""Chapter RNG: random streams, their seeds, draws and forks, and what transforms do to them."""
