#!/usr/bin/env python
"""The command line in a checkout: ``python manage.py help``. An installation has it as ``fivewire help``."""

from brokersite.__main__ import main

if __name__ == "__main__":
    main()
