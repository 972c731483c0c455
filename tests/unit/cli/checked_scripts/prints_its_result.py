"""A script of any language: its last line is its result."""

import json
import os

print("training with", os.environ["ZEUS_BATCH_SIZE"])
print(json.dumps({"accuracy": 0.5, "epochs": 2}))
