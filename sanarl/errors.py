"""Errors that a person can mend."""


class UserError(Exception):
    """Something the user can fix: a configuration, data, an environment.

    ``str(error)`` is the complete page for that person: where, what was found, what would be accepted.
    The command line prints it without a traceback and exits with ``exit_code``.
    """

    exit_code = 2


def first_line(error: BaseException) -> str:
    """What an exception says, in one line; its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
