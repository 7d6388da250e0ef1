"""Fuzzing: hypothesis invents inputs; each target must accept them, or refuse them in one line.

`make test` tries a few inputs, the same in every run.  `make fuzz` tries new ones for FUZZ_MINUTES
(10) and stops at the first finding.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
FEW = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=QUIET)
MANY = settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=QUIET)
PROFILE = MANY if os.environ.get("FUZZ") else FEW


@pytest.fixture(autouse=True)
def same_seed():
    """Keep random numbers as they are: the inputs must be new in every run of `make fuzz`."""
