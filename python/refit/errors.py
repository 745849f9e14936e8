"""What goes wrong, with the text that the command line would print."""


class Error(Exception):
    """Any failure of the planner."""


class InputError(Error, ValueError):
    """Bad usage or input (exit code 2 of the command line)."""


class WorkError(Error, RuntimeError):
    """The work itself failed (exit code 1)."""
