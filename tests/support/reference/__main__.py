"""`python -m tests.support.reference` writes docs/reference/; with --check, it prints a
line if a page is stale.
"""

import sys

from tests.support import reference

if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        names = reference.stale()
        sys.exit(reference.STALE.format(names=", ".join(names)) if names else 0)
    reference.write()
