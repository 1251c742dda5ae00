"""The command `weft`, and `python -m weft`: the command line.

It takes a moment to load. Ctrl-C in that moment ends it like one later on, without a traceback.
"""

import sys

try:
    from weft.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    main()
