import sys

import amped

keys = {"weekday": "dayname(time)", "hour": "hour(time)", "row": "row // 10", "column": '"column" // 10'}
events = amped.read("events.csv", keys=keys)
model = amped.cp_als(events, 6, nonnegative=True)
print(model.to_frame(3))
model.plot(sys.argv[1])
