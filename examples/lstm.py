"""An LSTM that reads scikit-learn's handwritten digits row by row.

    python -m examples.lstm

What it has seen is in its state; after the last row the state says which digit it was. Training
goes through all rows: the loop is one scan in the compiled program. It gets about 97 % of the test
pictures right.
"""

from __future__ import annotations

from typing import Any

import weft
from examples.digits import main
from weft import nn


class RowReader(nn.Module):
    """Rows of eight pixels to scores of the ten digits."""

    def __init__(self, hidden: int = 64, layers: int = 1) -> None:
        self.reader = nn.LSTM(8, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def __call__(self, images: Any) -> weft.Tensor:
        rows = weft.reshape(images, (images.shape[0], 8, 8))
        states, _ = self.reader(rows)
        return self.head(states[:, -1])


if __name__ == "__main__":
    main("lstm", RowReader, steps=600, rate=1e-2)
