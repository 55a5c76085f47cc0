"""Run a program in a new process, and write the times of its stages: ``python -m bench.stopwatch TIMES MODULE ...``."""

import time

UP = time.time()  # before anything else is imported


def main() -> int:
    """Import a module, call its ``main`` with the remaining arguments, and return what it returns.

    Rank 0 writes to the file TIMES: when the interpreter was up, the module imported and the program over, in seconds
    since 1970; and the seconds of the stages that nobody else has collected.
    """
    import json
    import os
    import sys
    from importlib import import_module

    written, name, *arguments = sys.argv[1:]
    program = import_module(name)
    imported = time.time()
    code: int = program.main(arguments)
    over = time.time()
    from partitioner.host.stages import STAGES

    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        with open(written, "w") as file:
            json.dump({"up": UP, "imported": imported, "over": over, "stages": STAGES.collect()}, file)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
