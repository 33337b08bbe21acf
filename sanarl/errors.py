"""Errors that a person can mend."""


class UserError(Exception):
    """Something the user can fix: a configuration, data, an environment.

    ``str(error)`` is the complete page for that person: where, what was found, what would be accepted.
    The command line prints it without a traceback and exits with ``exit_code``.
    """

    exit_code = 2
