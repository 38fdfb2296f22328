"""``python -m purge``."""

from purge.cli import main

if __name__ == "__main__":
    main()
