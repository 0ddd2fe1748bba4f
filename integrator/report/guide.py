"""How to read the page: one short paragraph for each of its sections, in plain words."""

from __future__ import annotations

READING = {
    "whole": """
        Each dot is how many times faster the patched model ran than one rival, in the same process and by turns; the
        bar is its 99% interval. A bar that touches 1 is no gain. First call is the wait before a first answer.
    """,
    "waterfall": """
        The two bars on top split one step by op, before and after, on one scale of time. Below them each op's bar is
        what it gave back, or took where it is outlined; the bars lead from the old step to the new one.
    """,
    "before": """
        The bar on top splits one step of the unpatched model by op; below it each op stands alone, on the same scale.
        There is no step after: nothing was swapped, or the run was stopped before it was measured.
    """,
    "ops": """
        One line for each task: equal regions of the model are one task. The floor is the least time this machine needs.
        The model gain is the step without the kernel over the step with it. A dash means that it was not measured.
    """,
    "amdahl": """
        The diamond is what Amdahl's law promises from the judge's timing of the task alone; the dot is what the whole
        model gained, with its interval. A dot left of its diamond: the gain did not arrive in full.
    """,
    "ablation": """
        Filled: the step without this one kernel over the step with all of them. Hollow: the model with this kernel
        alone against the model with none. A kernel whose filled interval holds 1 is dropped.
    """,
    "roofline": """
        The line is the most that this machine did when it was measured: copying on the slope, multiplying matrices on
        the flat. Grey dots are eager ops, blue ones what stands there now, numbered as in the table. A dot above the
        slope works from cache.
    """,
    "search": """
        Each dot is an attempt that the judge accepted, each cross one that it rejected; point at a mark for the reason.
        Crosses at the top were never timed. The step line is the best so far; dashed rules are what it had to beat.
    """,
    "sources": """
        The region's ops as readable PyTorch, and the kernel that replaces them, as the judge saw both.
    """,
    "checks": """
        The patched and the unpatched model are each compared with the same model in fp32. The patched error may exceed
        eager's by no more than rounding explains. Every leaf of the output is compared, on further inputs too.
    """,
    "engagement": """
        A kernel that never ran proves nothing, so calls are counted. Inputs outside the sizes, types or layouts that a
        kernel was verified for go to the original ops; these are the fallbacks.
    """,
    "skipped": "Work that took time but did not become a task.",
    "loading": "Paths are as they were when the run was made. The exported package holds no weights.",
    "environment": "What the figures above depend on. The same command on another machine gives other figures.",
}
