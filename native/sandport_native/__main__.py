"""`python -m sandport_native` is the same command as `sandport`."""

from sandport_native.cli import main

if __name__ == "__main__":
    main()
