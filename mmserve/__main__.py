"""`python -m mmserve` is `mmserve`."""

from mmserve.cli import main

if __name__ == "__main__":
    main()
