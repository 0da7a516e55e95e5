"""The clauses, a folder for each chapter."""
