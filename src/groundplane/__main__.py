"""`python -m groundplane` is `groundplane`."""

from groundplane.cli.main import main

main()
