"""A script for two ranks: `training.py STEPS DTYPE` trains a small GPT on batches split over ranks,
then with heads split over ranks. Rank 0 prints the losses as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

import weft
from tests.support.mesh_gpt import trained

steps, dtype = int(sys.argv[1]), np.dtype(sys.argv[2])
losses = {
    axis: trained(weft.mesh(**{axis: -1, other: 1}), steps, dtype)
    for axis, other in (("data", "model"), ("model", "data"))
}
if weft.mesh().rank == 0:
    print("losses", json.dumps(losses), flush=True)
