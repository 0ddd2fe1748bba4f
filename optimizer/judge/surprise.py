"""A sprint in which the inputs are not what a candidate may have come to count on: never timed, always looked at.

One set holds hard values, and the weights are others in part. On a CPU it is stopped midway, what it says is done is
looked at then, and the sets of the calls not yet made are filled anew. So arithmetic cannot be sloppy, calls cannot be
made together ahead of their turn, and weights cannot be remembered, only because time is taken.
"""

from __future__ import annotations

import random
import time

from .bank import Bank
from .lane import NOT_YET, Lane, drawn
from .pool import HARD, Pool
from .timed_outputs import check_sprint, outputs, refuse_any_wrong

_TRIES = 3
_AHEAD = "; its inputs were changed before its turn came: calls are made together, ahead of their turn"


def surprise(lane: Lane, pool: Pool, bank: Bank, calls: int, source: random.Random) -> None:
    """Run a sprint of `calls` with surprises; raise TimedOutputError where an output is not right for its inputs."""
    for _ in range(_TRIES):
        hard, place = pool.hard(lane.packed), source.randrange(calls)
        given = [drawn(pool, source) for _ in range(calls)]
        if hard:  # one set: were there more, they could be told from a timed sprint's by their likeness
            given[place] = (HARD, 1.0)
        lane.prepare(pool, given, hard)
        lane.worker.go_on()
        if lane.worker.device != "cpu":  # work under way on a device goes on while the process is stopped
            lane.worker.ask("sprint", seconds=lane.sprint_most_s, count=calls)
            lane.worker.stop()
            check_sprint(lane, pool, bank, source, {place})
            return
        done = _interrupted(lane, pool, bank, source, place)
        # On a busy machine this process may be woken when all is over.
        lane.reach = lane.reach / 2 if done == calls else min(2 * lane.reach, 1.0)
        if done < calls:
            return


def _interrupted(lane: Lane, pool: Pool, bank: Bank, source: random.Random, place: int) -> int:
    """Stop a sprint midway, change what it has not come to, return how many calls were done. place: of hard values."""
    calls = len(lane.contents)
    number = lane.worker.order("sprint", seconds=lane.call_s, count=calls)
    time.sleep(source.uniform(0.0, lane.last_s * lane.reach))
    lane.worker.stop()
    done = _done(lane, pool)
    if done:
        _refuse_wrong(lane, pool, bank, {source.randrange(done): ""})
    # One call may be half made: its inputs stay.
    unread = [entry for entry in range(done + 1, calls) if entry != place]
    for entry in unread:
        lane.contents[entry] = drawn(pool, source)
    lane.fill(pool, unread)
    lane.worker.go_on()
    lane.worker.answer(number, lane.sprint_most_s)
    lane.worker.stop()
    lane.refuse_company()
    looked_at = {place: ""} | ({source.choice([unread[0], source.choice(unread)]): _AHEAD} if unread else {})
    _refuse_wrong(lane, pool, bank, looked_at)
    return done


def _done(lane: Lane, pool: Pool) -> int:
    """Return how many calls, from the first on, have told where their outputs lie."""
    told = (lane.pointers(pool) != NOT_YET).all(1).tolist()
    return told.index(False) if False in told else len(told)


def _refuse_wrong(lane: Lane, pool: Pool, bank: Bank, entries: dict[int, str]) -> None:
    """Raise TimedOutputError where an output of these calls is wrong; beside each, what it means if it is."""
    got = outputs(lane, pool, list(entries))
    calls = [(entry, found, what) for (entry, what), found in zip(entries.items(), got, strict=True)]
    refuse_any_wrong(lane, pool, bank, calls)
