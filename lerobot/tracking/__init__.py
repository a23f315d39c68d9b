"""Where the numbers of a run go."""
