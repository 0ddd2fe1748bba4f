"""One integration at work: choose a tail by measurement, drop what does not pay or breaks the model, time the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..extractor.task import Extraction
from ..models.progress import Progress
from ..models.settings import Settings
from ..models.workload import Call, Workload
from .ablate import ablate
from .blocks import Pace, Timed, warm
from .measure import compiled_arm, grad_mode, many_rounds, measure, model_arm, pace_for
from .patch import Patch
from .results import Ablation, Check, EndToEnd, Engagement, Tail
from .rewrites.choice import FILE, RewriteChoice
from .rewrites.plan import SWITCHES
from .run_directory import RunDirectory
from .tails import COMPILING
from .verify import Expected, bisect, check, expect
from .winners import load_winners

# What is recorded or planned is so when a layout comes again.
_CALLS_TO_SETTLE = 2

# Tails that make a model faster with nothing swapped in, and that are no rival's.
_OWN: dict[Tail, str] = {"planned": "planned memory", "cudagraph": "CUDA graphs"}

# How long a model without kernels is raced against eager: nothing else says whether its tail pays.
_ALONE_S = 8.0

# From this budget on each kernel is also added alone, which doubles the ablation.
_LONG_BUDGET_S = 300.0


@dataclass
class Findings:
    """What integration has found so far; a report can be made of it at any point."""

    tail: Tail = "eager"
    ends: list[EndToEnd] = field(default_factory=list)
    checks: tuple[Check, ...] = ()
    engagement: tuple[Engagement, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    notes: list[str] = field(default_factory=list)
    complete: bool = False


class Integration:
    """One integration at work on a live model. One Patch a tail serves all of it: dropped kernels are switched off."""

    def __init__(
        self,
        directory: RunDirectory,
        workload: Workload,
        settings: Settings,
        progress: Progress,
        found: Findings,
        extraction: Extraction,
    ) -> None:
        self.directory = directory
        self.workload = workload
        self.settings = settings
        self.progress = progress
        self.found = found
        self.way = extraction.way
        self.rewrites_off: dict[str, str] = {}
        self.heaviest = max(workload.calls, key=lambda call: call.weight)
        winners = load_winners(directory.folder) if extraction.tasks else ()  # a model may hold no task at all
        self.kept = {w.fingerprint: w for w in winners if w.choice == "kernel"}
        self._has_winners = bool(winners)
        if settings.budget_s < _LONG_BUDGET_S and "cudagraph" not in self._tails():
            self._leave_rewrites()
        self.pays = bool(self.kept)
        self.patches: dict[Tail, Patch] = {}
        self.compiled: dict[str, Callable[[], object]] = {}
        self.compile_s: dict[str, float] = {}

    def measure_and_choose(self) -> None:
        """Fill the findings in; the model ends as it began."""
        self._compile_rivals()
        if self.kept or self._may_pay_without_kernels():
            self._choose_tail()
            self._ablate()
        self.pays = bool(self.kept) or self._pays_without_kernels()
        if self.pays:
            self.progress("integrate", 3, 6, "running the model as it is, and one precision up, on several inputs")
            expected = expect(self.workload.model, self.workload.calls, seed=self.settings.seed)
            self.progress("integrate", 4, 6, "verifying the whole model with what is kept")
            self._drop_what_breaks(expected)
        if not self.pays:
            self.found.notes.append("no kernel was kept: the model is left as it is")
        self.progress("integrate", 5, 6, "timing the whole model, interleaved")
        self.found.ends = [self._measure(call) for call in self.workload.calls]
        self.progress("integrate", 6, 6, "done")

    def _leave_rewrites(self) -> None:
        """Use no rewrites: on a CPU they gain little, and each has to be left out of the model once to be kept."""
        self.rewrites_off = dict.fromkeys(
            SWITCHES, "a search of under five minutes leaves a CPU model's graph as it is"
        )
        RewriteChoice(self.rewrites_off).save(self.directory.folder / FILE)

    def _patch(self, tail: Tail) -> Patch:
        if tail not in self.patches:
            made = Patch(self.workload.model, self.directory.folder, tail, self.way, bare=True)
            for winner in made.winners:
                if winner.choice == "kernel" and winner.fingerprint not in self.kept:
                    made.enable(winner.fingerprint, False)
            step = self._step(made)
            start = time.perf_counter()
            for _ in range(_CALLS_TO_SETTLE):
                step()
            self.compile_s[f"hotswap ({tail})"] = time.perf_counter() - start
            self.patches[tail] = made
        return self.patches[tail]

    def _pace(self, arms: int, seconds: float) -> Pace:
        """Return the pace at which `arms` fit into about `seconds`."""
        pace = pace_for(self.workload.model)
        with grad_mode(self.workload.mode):
            call_s = warm(Timed(model_arm(self.workload.model, self.heaviest)), pace)
        return many_rounds(pace, call_s, arms, seconds)

    def _step(self, run: Callable[..., object]) -> Callable[[], object]:
        arm = model_arm(run, self.heaviest)

        def step() -> object:
            with grad_mode(self.workload.mode):
                return arm()

        return step

    def _checks(self, expected: Expected, patch: Patch) -> tuple[Check, ...]:
        return check(expected, patch.installed)

    def _compile_rivals(self) -> None:
        """Compile the model as a user would, once for each mode; a mode that fails is a note, not an end."""
        modes: dict[str, str | None] = {"compile": None}
        if self.settings.baselines == "all":
            modes |= {"reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
        for name, mode in modes.items():
            self.progress("integrate", 0, 6, f"torch.compile, {name}")
            try:
                arm = compiled_arm(self.workload.model, self.heaviest, mode=mode, workload=self.workload.mode)
            except Exception as error:  # the compiler may fail on any model in any way; the run goes on without it
                self.found.notes.append(f"torch.compile ({name}) failed: {type(error).__name__}: {str(error)[:200]}")
                continue
            self.compiled[name], self.compile_s[name] = arm.call, arm.compile_s

    def _drop_what_breaks(self, expected: Expected) -> None:
        patch = self._patch(self.found.tail)

        def passes() -> bool:
            self.found.checks = self._checks(expected, patch)
            return all(one.passed for one in self.found.checks)

        if passes():
            return
        found = bisect(patch, passes, (*self.kept, *sorted(patch.rewritten - self.rewrites_off.keys())))
        if not found.plain_passes:
            self.found.notes.append("verification fails even with every kernel off: the captured graph itself differs")
        # Without rewrites too, what is left is the captured graph itself.
        for fingerprint in found.culprits if found.plain_passes else tuple(self.kept):
            self._drop(fingerprint, "the whole model is no longer itself with it (found by bisection)")
        if self.kept or found.plain_passes:
            passes()
        self.pays = all(one.passed for one in self.found.checks) and (bool(self.kept) or self._pays_without_kernels())

    def _drop(self, fingerprint: str, reason: str) -> None:
        if fingerprint in SWITCHES:
            self.rewrites_off[fingerprint] = reason
            RewriteChoice(self.rewrites_off).save(self.directory.folder / FILE)
            for patch in self.patches.values():
                patch.enable(fingerprint, False)
            return
        winner = self.kept.pop(fingerprint)
        replace(winner, choice="leave", reason=f"dropped: {reason}").save(
            self.directory.winners / f"{winner.task}.json"
        )
        for patch in self.patches.values():
            patch.enable(fingerprint, False)

    def _choose_tail(self) -> None:
        """Measure what runs the rest of the graph best: eager as it is, or Inductor."""
        if self.way == "module":
            self.found.notes.append(
                "kernels stand for whole modules, as the model gives no graph: all else runs in plain eager, "
                "and patched/, which swaps in graphs, leaves this model alone"
            )
            return
        if self.settings.mode != "auto":
            self.found.tail = self.settings.mode
            return
        self.progress("integrate", 1, 6, "choosing what runs the rest of the graph")
        tails = self._tails()
        arms: dict[str, Callable[[], object]] = {tail: model_arm(self._patch(tail), self.heaviest) for tail in tails}
        race = measure(
            arms,
            call=self.heaviest,
            subject="eager",
            mode=self.workload.mode,
            pace=self._pace(len(tails), 3.0),
        )
        times = {arm.name: arm.median_us for arm in race.arms}
        self.found.tail = min(tails, key=lambda tail: times[tail])
        said = ", ".join(f"{name} {us / 1e3:.2f} ms" for name, us in times.items())
        self.found.notes.append(f"the rest of the graph runs through {self.found.tail}: {said} a step")

    def _tails(self) -> tuple[Tail, ...]:
        devices = {p.device.type for p in self.workload.model.parameters()}
        if devices == {"cuda"} and self.workload.mode == "inference":
            return ("eager", "cudagraph", "inductor", "inductor-cudagraph")
        # Inductor around an unchanged graph is torch.compile, which is a rival.
        return ("eager", "planned", "inductor") if self.kept else ("eager", "planned")

    def _ablate(self) -> None:
        self.progress("integrate", 2, 6, "leaving kernels and rewrites out one at a time")
        tasks = {w.task: w.fingerprint for w in self.kept.values()}
        rewrites = self._patch(self.found.tail).rewritten
        if self.found.tail not in COMPILING:
            tasks |= {switch: switch for switch in sorted(rewrites)}
        elif rewrites:
            self.found.notes.append("rewrites stand as they are: Inductor would compile the model anew without each")
        self.found.ablations = ablate(
            self._patch(self.found.tail),
            model_arm(self._patch(self.found.tail), self.heaviest),
            tasks,
            seconds=min(60.0, 3.0 + 2.5 * len(tasks)),
            add_one_in=self.settings.budget_s >= _LONG_BUDGET_S,
            mode=self.workload.mode,
            pace=pace_for(self.workload.model),
            seed=self.settings.seed,
        )
        for effect in self.found.ablations:
            if not effect.kept:
                self._drop(tasks[effect.task], effect.reason)
        applied = [SWITCHES[switch] for switch in sorted(rewrites) if switch not in self.rewrites_off]
        if applied:
            self.found.notes.append(f"rewrites in the model: {'; '.join(applied)}")

    def _may_pay_without_kernels(self) -> bool:
        """Whether there is anything to measure: a tail that is no rival's, or a rewrite that changes a graph."""
        if self.way == "module" or not self._has_winners:
            return False
        return self.settings.mode in ("auto", *_OWN) or bool(self._patch("eager").rewritten)

    def _pays_without_kernels(self) -> bool:
        """Whether rewrites, or CUDA graphs, make the model faster than it is in eager, with no kernel swapped in.

        Inductor around an unchanged graph is torch.compile, which is a rival.
        """
        if not self._may_pay_without_kernels():
            return False
        patch = self._patch(self.found.tail)
        rewritten = patch.rewritten - self.rewrites_off.keys()
        if not rewritten and self.found.tail not in _OWN:
            return False
        race = measure(
            {"eager": model_arm(self.workload.model, self.heaviest), "hotswap": model_arm(patch, self.heaviest)},
            call=self.heaviest,
            subject="hotswap",
            mode=self.workload.mode,
            pace=self._pace(2, _ALONE_S),
        )
        gain = race.speedup["eager"]
        how = [*([_OWN[self.found.tail]] if self.found.tail in _OWN else []), *(["rewrites"] if rewritten else [])]
        said = f"{' and '.join(how)} alone: {gain.median:.2f}x eager [{gain.low:.2f}, {gain.high:.2f}]"
        if gain.low <= 1.0:
            self.found.notes.append(f"{said}, which is no gain beyond noise")
            return False
        RewriteChoice(self.rewrites_off).save(self.directory.folder / FILE)
        self.found.notes.append(f"no kernel was kept; the model is faster by {said}")
        return True

    def _measure(self, call: Call) -> EndToEnd:
        """Time one call: eager, compiled where it was compiled for this call, and patched where a kernel is kept."""
        arms: dict[str, Callable[[], object]] = {"eager": model_arm(self.workload.model, call)}
        if call is self.heaviest:
            arms |= self.compiled
        if self.pays:
            arms["hotswap"] = model_arm(self._patch(self.found.tail), call)
        subject = "hotswap" if self.pays else next(reversed(arms))
        ends = measure(
            arms,
            call=call,
            subject=subject,
            mode=self.workload.mode,
            pace=self._pace(len(arms), 10.0),
            compile_s=self.compile_s,
        )
        if self.kept:
            patch = self._patch(self.found.tail)
            patch.require_engaged()
            names = {w.task for w in self.kept.values()}
            self.found.engagement = tuple(e for e in patch.engagement() if e.task in names)
        return ends
