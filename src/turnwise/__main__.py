"""`python -m turnwise` runs the command `turnwise`."""

import sys

from turnwise.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
