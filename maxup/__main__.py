"""Run the command with `python -m maxup` or `torchrun -m maxup`."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] == os.getcwd():
    sys.path.append(sys.path.pop(0))  # before the imports: a file in the current folder must not hide a module

from maxup.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
