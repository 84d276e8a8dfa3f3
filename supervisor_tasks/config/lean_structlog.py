"""Imports structlog without rich, which takes each process 5 MB.

structlog uses rich for tracebacks that show local variables, secrets among them. Our logs have none of these.
"""

import sys

if "rich" not in sys.modules and "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's way to say that a module cannot be imported
    try:
        import structlog  # noqa: F401  the point of this module
    finally:
        del sys.modules["rich"]
