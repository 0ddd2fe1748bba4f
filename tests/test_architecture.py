"""What holds the house up: the arrows, the package list, light imports, and the limits a wish would not keep."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import hotswap

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("models", "profiler", "extractor", "optimizer", "integrator", "cli")
HEAVY = ("torch", "transformers", "triton", "litellm", "numpy", "networkx")
LONGEST_FUNCTION = 60

# Where code that is not ours may raise anything: the reason, to each `file:function` whose handler has to be broad.
BROAD_HANDLERS: dict[str, tuple[str, ...]] = {
    "the last border: the user gets one line, and the traceback on request": ("cli/main.py:main",),
    "the user's model, factory, inputs or reference is run here": (
        "extractor/capture.py:_run_calls",
        "extractor/captured_function.py:_arguments",
        "extractor/new_task.py:_answer",
        "extractor/new_task.py:_means_the_same",
        "extractor/problem.py:made",
        "extractor/sizes.py:_varies",
        "integrator/verify.py:_case",
        "integrator/verify.py:_recorded",
        "integrator/verify.py:accepts",
        "models/input_choice.py:on_shapes",
        "models/input_choice.py:runs",
        "models/spec.py:_call_factory",
        "models/spec.py:_call_inputs",
        "models/trial.py:run_call",
        "models/user_code.py:from_module",
        "models/user_code.py:run_file",
        "optimizer/judge/bank.py:_sample",
        "optimizer/judge/bank.py:takes",
        "profiler/record.py:_costs",
        "profiler/record.py:_record_steps",
        "profiler/step.py:run",
    ),
    "a candidate or a kernel made from one is run here": (
        "integrator/cuda_graphs.py:_capture",
        "integrator/kernel_site.py:__call__",
        "integrator/kernel_source.py:_execute",
        "integrator/op_check.py:_check",
        "integrator/verify.py:_attempt",
        "integrator/verify.py:_decoded",
        "optimizer/codegen/triton_compile.py:compile_one",
        "optimizer/codegen/triton_interpreter.py:_answer",
        "optimizer/judge/bench.py:_told",
        "optimizer/judge/bench.py:serve",
        "optimizer/judge/device_bench.py:_capture",
    ),
    "transformers, its configs and remote code raise what they like": (
        "models/hub.py:_config",
        "models/hub.py:_config_from_fields",
        "models/hub.py:from_checkpoint",
        "models/hub.py:from_config_alone",
    ),
    "torch's compiler or a function of any library is run here": (
        "extractor/node_ops.py:ops_of",
        "integrator/backend.py:_rewritten",
        "integrator/integration.py:_compile_rivals",
        "integrator/planned_runs.py:_ready",
        "integrator/rewrites/packed_use.py:fits",
    ),
}


def modules() -> Iterator[Path]:
    for stage in ORDER:
        yield from sorted(p for p in (ROOT / stage).rglob("*.py") if "__pycache__" not in p.parts)


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def dotted(path: Path) -> tuple[str, ...]:
    """Return a file's module name below the root, as parts; a package's `__init__` is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield every module of ours that the file imports, wherever the import stands, as parts below the root."""
    known = {dotted(p) for p in modules()}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.relative_to(ROOT).parts[: -node.level]
            target = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield (*target, alias.name) if (*target, alias.name) in known else target


@pytest.mark.parametrize("stage", ORDER)
def test_a_stage_imports_only_earlier_stages(stage: str) -> None:
    later = set(ORDER[ORDER.index(stage) + 1 :])
    for path in (ROOT / stage).rglob("*.py"):
        wrong = [".".join(m) for m in imported(path) if m and m[0] in later]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}, which is downstream of {stage}"


def test_no_module_imports_the_package_by_its_absolute_name() -> None:
    for path in modules():
        for node in ast.walk(tree(path)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [n for n in names if n.split(".")[0] == "hotswap"], f"{path}: import hotswap relatively"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = nx.DiGraph((dotted(p), m) for p in modules() for m in imported(p))
    circles = [sorted(".".join(m) for m in c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles


def test_the_package_list_names_every_folder_with_an_init() -> None:
    listed = setup()["options"]["packages"].split()
    found = ["hotswap", *(".".join(("hotswap", *dotted(p))) for p in modules() if p.name == "__init__.py")]
    assert sorted(listed) == sorted(found)


def test_every_module_lies_in_a_package() -> None:
    assert [str(p.relative_to(ROOT)) for p in modules() if not (p.parent / "__init__.py").exists()] == []


def test_the_root_holds_no_other_module() -> None:
    assert [p.name for p in ROOT.glob("*.py")] == ["__init__.py"]


def test_data_files_are_packaged() -> None:
    """A glob of package_data is relative to its package, and may reach into plain folders below it."""
    packaged = [
        "/".join([*name.split(".")[1:], glob.strip()])
        for name, globs in setup()["options.package_data"].items()
        for glob in globs.split(",")
    ]
    for stage in ORDER:
        for path in (ROOT / stage).rglob("*"):
            name = str(path.relative_to(ROOT))
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                assert any(fnmatch.fnmatch(name, glob) for glob in packaged), f"{name} is not in package_data"


def test_every_third_party_import_is_declared() -> None:
    """What the package imports, wherever the import stands, is in setup.cfg: required, or in an extra."""
    options = setup()
    lines = [options["options"]["install_requires"], *options["options.extras_require"].values()]
    declared = {
        re.split(r"[<>=!~ \[]", line.strip())[0].replace("-", "_").lower()
        for block in lines
        for line in block.split("\n")
    }
    for path in modules():
        for node in ast.walk(tree(path)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            foreign = {n.split(".")[0] for n in names} - sys.stdlib_module_names - {"hotswap"}
            assert foreign <= declared, (
                f"{path.relative_to(ROOT)} imports {foreign - declared}, which setup.cfg does not name"
            )


def test_make_help_lists_what_a_newcomer_may_type() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    phony = next(
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if line.startswith(".PHONY")
    )
    assert listed == set(phony.split()[1:])


def test_importing_hotswap_or_any_command_loads_nothing_heavy() -> None:
    names = ["hotswap", *(".".join(("hotswap", *dotted(p))) for p in modules() if p.parent.name == "cli")]
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_command_line_prints() -> None:
    for path in modules():
        if path.relative_to(ROOT).parts[0] != "cli":
            calls = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
            lines = [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
            assert not lines, f"{path.relative_to(ROOT)}: prints at {lines}; use a logger"


def broad_handlers(path: Path) -> Iterator[str]:
    """Yield `file:function` of each broad handler; of nested functions the innermost."""
    nodes = list(ast.walk(tree(path)))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in nodes:
        if isinstance(node, ast.ExceptHandler) and is_broad(node):
            around = [f for f in functions if f.lineno < node.lineno <= (f.end_lineno or 0)]
            yield f"{path.relative_to(ROOT)}:{max(around, key=lambda f: f.lineno).name if around else ''}"


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it catches everything and does not simply raise it again after cleaning up."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    catches_all = any(k is None or (isinstance(k, ast.Name) and k.id in ("Exception", "BaseException")) for k in kinds)
    last = handler.body[-1]
    return catches_all and not (isinstance(last, ast.Raise) and last.exc is None)


def test_broad_handlers_stand_only_where_a_reason_is_given() -> None:
    found = {where for path in modules() for where in broad_handlers(path)}
    allowed = {where for places in BROAD_HANDLERS.values() for where in places}
    assert sorted(found - allowed) == [], "name the exceptions, or add it to BROAD_HANDLERS with the reason"
    assert sorted(allowed - found) == [], "a reason is left over for a handler that is gone"


def test_no_function_is_too_long_to_read() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long


def test_modules_are_named_for_their_meaning() -> None:
    """A command's file bears the command's name (`cli/profile.py`), which may also be a module of Python's."""
    for path in modules():
        if path.relative_to(ROOT).parts[0] != "cli":
            assert path.stem not in sys.stdlib_module_names, f"{path.relative_to(ROOT)} hides a module of Python's"
        assert path.stem not in ("utils", "common", "helpers", "misc"), f"{path.relative_to(ROOT)} says nothing"


def test_every_module_opens_with_what_it_is() -> None:
    assert [str(p.relative_to(ROOT)) for p in modules() if not ast.get_docstring(tree(p))] == []


def test_the_public_names_are_these() -> None:
    assert sorted(hotswap.__all__) == ["Call", "judge", "optimize", "patch", "patched", "unpatch"]


@pytest.mark.parametrize("name", hotswap.__all__)
def test_a_public_name_is_what_it_says(name: str) -> None:
    public = getattr(hotswap, name)
    assert callable(public)
    assert public.__name__ == name


def test_an_unknown_public_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="it has Call, judge, optimize"):
        _ = hotswap.optimise
