"""Run the command line: ``python -m telecine``."""

import sys

from telecine.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
