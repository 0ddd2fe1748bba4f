"""A task for tests that need one and not its inputs."""

from __future__ import annotations

import pytest
from gelu_task import gelu_task

from hotswap.extractor.task import Task


@pytest.fixture
def gelu() -> Task:
    made: Task = gelu_task()
    return made
