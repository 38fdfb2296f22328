"""``python -m purge``."""

from purge.cli.app import main

if __name__ == "__main__":
    main()
