"""`python -m mptraining` is `mptj`."""

from mptraining.cli.main import main

if __name__ == "__main__":
    main()
