"""A target that cannot be imported."""

raise RuntimeError("no luck\ntoday")
