"""Entry point of `python -m mptraining`, the same as `mptj`."""

from mptraining.cli.main import main

if __name__ == "__main__":
    main()
