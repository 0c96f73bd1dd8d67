"""`python -m medapps` is the same program as `medapps`."""

from medapps.cli.main import main

if __name__ == "__main__":
    main()
