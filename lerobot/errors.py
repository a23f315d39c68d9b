"""What a command answers with one sentence: a mistake of the user's, or a run that cannot go on."""


class ConfigError(ValueError):
    """A request that cannot be honoured. The message is one sentence that says what to type instead.

    Commands print it as `error: ...` and leave with status 2, before anything is built or overwritten.
    """


class RunError(RuntimeError):
    """A run that cannot go on, for a reason that one sentence says. Commands print it as `error: ...`, status 1."""
