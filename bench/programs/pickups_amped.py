import sys

import amped

pickups = amped.read("pickups.npz")
model = amped.cp_apr(pickups, 4, max_iters=50, tol=0)
print(model.to_frame(3))
model.plot(sys.argv[1])
