"""The program `roxie`: this process becomes it."""

import os
import sys

from . import program


def main() -> None:
    """Replace this process by the program."""
    os.execv(program(), ["roxie", *sys.argv[1:]])


if __name__ == "__main__":
    main()
