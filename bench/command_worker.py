"""Run amped's command line again and again in one process, started by `bench.regression` with a tree on the path.

Standard input has a command's arguments per line, as a JSON list; standard output gets its exit code per line. This
file is run by its name and uses the command line only, so that the tree may be of another version.
"""

import gc
import json
import os
import sys


def main() -> None:
    """Say which package is used, then run commands until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import amped
    from amped.run import main as run

    print(json.dumps(amped.__file__), file=replies, flush=True)
    for line in sys.stdin:
        code = run(json.loads(line))
        gc.unfreeze()  # amped freezes what a process has at its end
        gc.collect()
        print(json.dumps(code), file=replies, flush=True)


if __name__ == "__main__":
    main()
