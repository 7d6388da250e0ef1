"""The run folder: `Run` owns it, `train` fills it."""

from turnwise.runs.run import Run as Run
