"""Which form answers a call with a passed mask: the special one where it is right, without a wait where none helps."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from hotswap.integrator.form_choice import Answer, CudaFlags, FormChoice
from hotswap.integrator.rewrites.mask_choice import Condition

ONES, LEFT, RIGHT = torch.ones(2, 6).long(), torch.ones(2, 6).long().triu(), torch.ones(2, 6).long().tril(4)


class FakeFlags:
    """Flags of a device that answers when it is asked to; what was done is in `log`, beside what the forms add."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.is_busy = False

    def busy(self) -> bool:
        return self.is_busy

    def send(self, flag: torch.Tensor) -> Answer:
        self.log.append("ask")
        sent = bool(flag)

        def answer() -> bool:
            self.log.append("wait")
            return sent

        return answer


class Choice:
    """A sum over what a mask shows, in two forms: the special one does not look at the mask."""

    def __init__(self, *, ahead: bool = False) -> None:
        self.flags = FakeFlags()
        self.run = FormChoice(Condition(1, 1), self._special, self._general, self.flags, ahead=ahead)

    def _special(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.flags.log.append("special")
        return x.sum()

    def _general(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.flags.log.append("general")
        return (x * mask).sum()

    def steps(self, mask: torch.Tensor) -> list[str]:
        """Return what one call did, in order; its answer is right."""
        self.flags.log.clear()
        x = torch.rand(2, 6)
        assert torch.equal(self.run(x, mask), (x * mask).sum())
        return list(self.flags.log)


def test_the_first_call_waits_for_what_its_mask_is() -> None:
    assert Choice().steps(ONES) == ["ask", "wait", "special"]
    assert Choice().steps(LEFT) == ["ask", "wait", "general"]


def test_padded_calls_do_not_wait_for_their_own_mask() -> None:
    choice = Choice()
    choice.steps(LEFT)
    assert choice.steps(RIGHT) == ["ask", "general"]
    # The answer that is waited for is the last call's, on its way since then.
    assert choice.steps(LEFT.clone()) == ["wait", "ask", "general"]


def test_a_padded_mask_that_comes_again_is_not_read_again() -> None:
    choice = Choice()
    choice.steps(LEFT)
    assert choice.steps(LEFT) == choice.steps(LEFT) == ["general"]


def test_a_padded_mask_that_was_written_into_is_read_again_and_the_special_form_comes_back() -> None:
    choice, mask = Choice(), LEFT.clone()
    choice.steps(mask)
    mask.fill_(1)
    assert choice.steps(mask) == ["ask", "general"]
    assert choice.steps(mask) == ["wait", "ask", "wait", "special"]


def test_a_mask_that_hid_nothing_is_read_at_each_call() -> None:
    """Writes past autograd count no version: nothing but reading shows them."""
    choice, mask = Choice(), ONES.clone()
    assert choice.steps(mask) == choice.steps(mask) == ["ask", "wait", "special"]
    version = mask._version
    mask.data[0, :3] = 0
    assert mask._version == version
    assert choice.steps(mask) == ["ask", "wait", "general"]


def test_a_mask_made_in_inference_mode_is_never_remembered() -> None:
    choice = Choice()
    with torch.inference_mode():
        mask = LEFT.clone()
        choice.steps(mask)
        assert choice.steps(mask) == ["ask", "general"]
        assert choice.steps(mask) == ["wait", "ask", "general"]


def test_after_two_masks_that_hid_nothing_the_special_form_is_launched_ahead_of_the_answer() -> None:
    choice = Choice(ahead=True)
    assert choice.steps(ONES) == ["ask", "wait", "special"]
    assert choice.steps(ONES) == ["ask", "special", "wait"]
    # A wrong guess is thrown away.
    assert choice.steps(RIGHT) == ["ask", "special", "wait", "general"]
    assert choice.steps(LEFT) == ["ask", "general"]


def test_inside_a_capture_the_form_that_is_always_right_is_recorded_and_nothing_is_read() -> None:
    choice = Choice()
    choice.steps(ONES)
    choice.flags.is_busy = True
    assert choice.steps(ONES) == choice.steps(LEFT) == ["general"]


def test_a_run_that_fails_leaves_no_answer_behind() -> None:
    choice = Choice(ahead=True)
    choice.steps(ONES)
    choice.steps(ONES)
    with pytest.raises(RuntimeError):
        choice.run(torch.rand(2, 5), torch.zeros(3, 7))
    assert choice.steps(LEFT)[-1] == "general"


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_masks_come_and_however_they_are_changed_the_answer_is_the_general_forms(
    seed: int, ahead: bool
) -> None:
    drawn, choice = random.Random(seed), Choice(ahead=ahead)
    kept = [m.clone() for m in (ONES, LEFT, RIGHT, ONES)]
    for _ in range(300):
        mask: Any = drawn.choice(kept)
        change = drawn.choice(["none", "none", "none", "in place", "behind autograd", "another"])
        value = drawn.choice([ONES, ONES, LEFT, RIGHT])
        if change == "in place":
            mask.copy_(value)
        elif change == "behind autograd":
            mask.data.copy_(value)
        elif change == "another":
            mask = value.clone()
        choice.steps(mask)


@pytest.mark.gpu
def test_on_a_gpu_flags_come_back_whatever_device_is_the_default() -> None:
    with torch.device("cuda"):
        answers = [CudaFlags().send(torch.tensor(value)) for value in (True, False, True)]
        assert [answer() for answer in answers] == [True, False, True]
        assert not CudaFlags().busy()
