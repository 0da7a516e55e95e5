"""Chapter TREE: tree mode, in which nothing is shared and only Variables change."""
