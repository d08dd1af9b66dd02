"""Run the command line from a checkout: ``python cli.py`` is the installed ``lr-sglang``."""

from lr_sglang.cli import main

if __name__ == "__main__":
    main()
