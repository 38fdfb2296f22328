"""``python -m purge``."""

import os
import sys

if __name__ == "__main__":
    # python -m puts the current folder first, where a file named like a library would take its place.
    here, home = os.getcwd(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[0] in ("", here) and here != home and not sys.flags.safe_path:
        del sys.path[0]

    from purge.cli.app import main

    main()
