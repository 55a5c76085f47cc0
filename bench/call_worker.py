"""Time calls of amped's functions in one process, started by `bench.hypersparse` with a tree on the path.

Standard input has a request per line, as JSON; standard output gets its times per line. This file is run by its name
and uses the public functions only, so that the tree may be of another version.
"""

import json
import os
import sys
import time

import numpy as np


def main() -> None:
    """Say which package is used, then answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import amped

    print(json.dumps(amped.__file__), file=replies, flush=True)
    tensors = {}
    for line in sys.stdin:
        request = json.loads(line)
        path = request["tensor"]
        if path not in tensors:
            with np.load(path) as arrays:
                tensors[path] = amped.SparseTensor(arrays["indices"], arrays["values"], tuple(arrays["shape"]))
        print(json.dumps(times(getattr(amped, request["function"]), tensors[path], request)), file=replies, flush=True)


def times(function, tensor, request):  # type: ignore[no-untyped-def]
    """Return seconds by the clock and of the processor: medians over iterations, and of a whole call."""
    marks = []

    def mark(iteration, measure):  # type: ignore[no-untyped-def]
        marks.append((time.perf_counter(), time.process_time()))

    flags = {"tol": 0, "device": "cpu", **request["options"]}
    if "constraints" in flags:
        flags["constraints"] = dict(enumerate(flags["constraints"]))
    function(tensor, request["rank"], max_iters=request["iterations"], callback=mark, **flags)
    each = np.diff(np.array(marks), axis=0)
    began = time.perf_counter(), time.process_time()
    function(tensor, request["rank"], max_iters=request["call"], **flags)
    call = time.perf_counter() - began[0], time.process_time() - began[1]
    clock, processor = np.median(each, axis=0)
    return {"iteration": clock, "iteration_processor": processor, "call": call[0], "call_processor": call[1]}


if __name__ == "__main__":
    main()
