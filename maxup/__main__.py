"""`python -m maxup`, and `torchrun -m maxup`."""

import os
import sys

from maxup.cli.main import main

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        sys.path.append(sys.path.pop(0))  # a file in the current folder must not hide an installed module
    sys.exit(main())
