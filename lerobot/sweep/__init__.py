"""Many runs from one line: what they are, how they keep apart, what became of each. Imports no torch."""
