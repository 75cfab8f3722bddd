"""`python -m maxup`, and `torchrun -m maxup`."""

import sys

from maxup.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
