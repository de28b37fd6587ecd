"""The one exception whose message is written for the person who typed the command."""


class UserError(Exception):
    """Something the user can put right; the message is one line naming the thing and the remedy.

    Command-line programs print it without a traceback and exit with status 2; a program that uses the
    library sees an ordinary exception.
    """
