"""`python -m proxy`."""

import sys

from proxy.command import main

sys.exit(main())
