"""`python -m rig`: the same as `pdrig`."""

from rig.cli import main

if __name__ == "__main__":
    main()
