"""Pictures of runs."""
