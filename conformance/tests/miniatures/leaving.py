"""A target that leaves, as a script would."""

import sys

sys.exit("bye")
