"""The vocabulary that the scheduling algorithms share."""


class InputError(ValueError):
    """Input that no algorithm can work on; the message names the place and what would be right."""
