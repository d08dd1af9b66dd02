"""What simulated runtimes in processes of their own are forked from (see ``mortal``): imported
once, for seconds.
"""

import os

import tests.simulated.__main__
from tests.simulated.words import pocket_words

pocket_words()


def simulate(arguments: list[str], log: str) -> None:
    """Simulated runtimes in a fork."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    tests.simulated.__main__.main(arguments)
