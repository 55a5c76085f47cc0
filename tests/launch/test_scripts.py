"""The scripts of launch/: on a made-up machine whose only commands are stubs, so that nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINTERS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
COMMANDS = [ROOT / "launch" / name for name in ("quickstart", "local", "test", "docs")] + [ROOT / ".ci" / "run"]
SLURM = sorted((ROOT / "launch" / "slurm").glob("*.sbatch"))
SCRIPTS = [*COMMANDS, ROOT / "launch" / "environment.sh", *SLURM]
TOOLS = "bash cat cksum dirname env grep head mkdir mktemp mv nice readlink rm sed sort tail tee tr xargs".split()

# A Python that makes environments of itself and records the arguments of pip.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    -c*) exit 0 ;;
    -VV) echo "Python 3.11.0 (stub)" ;;
    "-m venv --clear "*) mkdir -p "$4/bin"; cat "$0" >"$4/bin/python"
        for stub in "$STUBS"/*; do cat "$stub" >"$4/bin/${stub##*/}"; done
        "$CHMOD" +x "$4"/bin/* ;;
    "-m pip install "*" uv") [[ ${UV:-} ]] ;;
    "-m uv pip install "*) echo "${@: -1}" >>"$LOG"; [[ $UV == works ]] ;;
    "-m pip install "*) echo "${@: -1}" >>"$LOG" ;;
    "-m pytest "*" tests/launch/test_site.py") ;;
    "-m pytest "*) echo "rank ${OMPI_COMM_WORLD_RANK:-none}: $*"
        echo "BLAS ${OPENBLAS_NUM_THREADS:-all}, yield ${OMPI_MCA_mpi_yield_when_idle:-0}"
        [[ ${OMPI_COMM_WORLD_RANK:-} == "${FAILING:-none}" ]] || exit "${PYTEST_CODE:-0}"
        echo "FAILED test_x"; exit 1 ;;
    "-m amped.run"*) printf '[%s]' python "$@"; echo ;;
    *) exit 99 ;;
esac
"""
OLD_PYTHON = '#!/usr/bin/env bash\n[[ $1 == --version ]] && echo "Python 3.9.2" || exit 1\n'
BROKEN_SHIM = '#!/usr/bin/env bash\necho "pyenv: command not found" >&2; exit 127\n'
# Prints its arguments, one in each pair of brackets; runs the ranks of tests one after another.
MPIRUN = """#!/usr/bin/env bash
printf '[%s]' mpirun "$@"; echo
[[ $3 == bash ]] || exit 0
for ((rank = 0; rank < $2; rank++)); do OMPI_COMM_WORLD_RANK=$rank "${@:3}" || code=$?; done
exit "${code:-0}"
"""
PASSES = "#!/usr/bin/env bash\n"
FAILS = "#!/usr/bin/env bash\nexit 3\n"
SMI = """#!/usr/bin/env bash
if [[ $1 == -L ]]; then printf 'GPU %s: NVIDIA H200\\n' 0 1 2 3 4 5; else echo "| NVIDIA-SMI 1  {} |"; fi
"""


class Machine:
    """A project folder, a PATH with only `TOOLS` and stubs on it, and a log of what was installed."""

    def __init__(self, folder: Path) -> None:
        self.project, self.bin, self.stubs = folder / "a project", folder / "bin", folder / "stubs"
        self.elsewhere, self.log = folder / "elsewhere", folder / "log"
        for made in (self.project, self.bin, self.stubs, self.elsewhere):
            made.mkdir()
        shutil.copytree(ROOT / "launch", self.project / "launch")
        shutil.copytree(ROOT / ".ci", self.project / ".ci")
        shutil.copy(ROOT / "pyproject.toml", self.project)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        (self.stubs / "mpirun").write_text(MPIRUN)
        for name in ("ruff", "clang-format", "mypy", "lint-imports", "sphinx-build"):
            (self.stubs / name).write_text(PASSES)

    def add(self, name: str, text: str) -> None:
        """Put a command on the PATH."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the project from another folder."""
        environment = {
            "PATH": str(self.bin),
            "LOG": str(self.log),
            "STUBS": str(self.stubs),
            "CHMOD": str(shutil.which("chmod")),
            **variables,
        }
        return subprocess.run(
            [str(self.project / script), *arguments],
            cwd=self.elsewhere,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def installed(self) -> list[str]:
        """Return the extras of each call of pip so far."""
        calls = self.log.read_text().splitlines() if self.log.exists() else []
        assert all(call.startswith(f"{self.project}[") for call in calls)
        return [call.removeprefix(f"{self.project}[").removesuffix("]") for call in calls]


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A machine without Python."""
    return Machine(tmp_path)


@pytest.fixture
def machine(bare: Machine) -> Machine:
    """A machine with Python 3.11 and nothing else."""
    bare.add("python3.11", PYTHON)
    return bare


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.name)
def test_executable(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")


def test_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=LINTERS)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, "-x", *map(str, SCRIPTS)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_first_python_that_runs_is_taken(machine: Machine) -> None:
    machine.add("python3.13", BROKEN_SHIM)
    machine.add("python3.12", OLD_PYTHON)
    done = machine.run("launch/quickstart")
    assert done.returncode == 0, done.stderr
    assert "stub" in (machine.project / ".venv" / "amped-base").read_text()


@pytest.mark.parametrize("python", [OLD_PYTHON, BROKEN_SHIM, None])
def test_no_python_is_one_line(bare: Machine, python: str | None) -> None:
    if python:
        bare.add("python3", python)
    done = bare.run("launch/quickstart")
    assert done.returncode == 1
    assert done.stdout == ""
    line = done.stderr.strip()
    assert "\n" not in line
    assert line.startswith("quickstart: needs Python 3.11 or newer")
    assert "3.9.2" in line or python != OLD_PYTHON
    assert not (bare.project / ".venv").exists()


def test_named_python_alone_is_tried(machine: Machine) -> None:
    machine.add("mine", OLD_PYTHON)
    done = machine.run("launch/quickstart", PYTHON="mine")
    assert done.returncode == 1
    assert "mine here is Python 3.9.2" in done.stderr


def test_second_run_installs_nothing(machine: Machine) -> None:
    first, second = machine.run("launch/quickstart"), machine.run("launch/quickstart")
    assert machine.installed() == ["mpi,report,tables"]
    assert "installing" in first.stdout
    assert second.stdout == "[python][-m][amped.run]\n", "one process on all cores"


def test_installs_again_when_the_project_changes(machine: Machine) -> None:
    machine.run("launch/quickstart")
    with (machine.project / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    machine.run("launch/quickstart")
    assert machine.installed() == ["mpi,report,tables", "mpi,report,tables"]


def test_each_extra_is_installed_once(machine: Machine) -> None:
    for script in ("launch/quickstart", "launch/test", "launch/quickstart", "launch/docs", "launch/local"):
        machine.run(script)
    assert machine.installed() == ["mpi,report,tables", "mpi,test,tables,docs,nvrtc"]


@pytest.mark.parametrize(("uv", "calls"), [("", 1), ("works", 1), ("fails", 2)])
def test_pip_installs_where_uv_does_not(machine: Machine, uv: str, calls: int) -> None:
    assert machine.run("launch/quickstart", UV=uv).returncode == 0
    assert machine.installed() == ["mpi,report,tables"] * calls


def test_failed_install_leaves_no_stamp(machine: Machine) -> None:
    machine.add("python3.11", PYTHON.replace('echo "${@: -1}" >>"$LOG"', "exit 1"))
    done = machine.run("launch/quickstart")
    assert done.returncode == 1
    assert "pip failed" in done.stderr
    assert not list((machine.project / ".venv").glob("amped-*"))


def test_broken_environment_is_made_again(machine: Machine) -> None:
    machine.run("launch/quickstart")
    (machine.project / ".venv" / "bin" / "python").unlink()
    assert machine.run("launch/quickstart").returncode == 0


def test_arguments_pass_unchanged(machine: Machine) -> None:
    machine.run("launch/quickstart")
    done = machine.run("launch/quickstart", "cpd", "a b.tns", "--rank", "4", "")
    assert done.stdout == "[python][-m][amped.run][cpd][a b.tns][--rank][4][]\n"


def test_local_ranks(machine: Machine) -> None:
    machine.run("launch/quickstart")
    tail = "[python][-m][amped.run][info][x.tns]\n"
    assert machine.run("launch/local", "info", "x.tns").stdout == "[mpirun][-n][1]" + tail
    assert machine.run("launch/local", "-n", "3", "info", "x.tns").stdout == "[mpirun][-n][3]" + tail
    wrong = machine.run("launch/local", "-n", "info")
    assert (wrong.returncode, wrong.stderr) == (1, "local: -n needs a number of ranks\n")


@pytest.mark.parametrize(
    ("header", "visible", "extras", "ranks"),
    [
        ("Driver Version: 580.1    CUDA Version: 13.0", None, "mpi,report,tables,cuda13", 6),
        ("KMD Version: 610.4   CUDA UMD Version: 13.3", None, "mpi,report,tables,cuda13", 6),
        ("Driver Version: 550.1    CUDA Version: 12.4", "2,3", "mpi,report,tables,cuda12", 2),
        ("Driver Version: 470.1    CUDA Version: 11.4", None, "mpi,report,tables", 0),
        ("Driver Version: 580.1    CUDA Version: 13.0", "", "mpi,report,tables,cuda13", 0),
        ("Driver Version: 580.1    CUDA Version: 13.0", "-1", "mpi,report,tables,cuda13", 0),
    ],
)
def test_gpus(machine: Machine, header: str, visible: str | None, extras: str, ranks: int) -> None:
    machine.add("nvidia-smi", SMI.format(header))
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = machine.run("launch/quickstart", **variables)
    assert machine.installed() == [extras]
    assert (f"[mpirun][-n][{ranks}]" if ranks else "\n[python][-m]") in done.stdout


def test_driver_that_fails_is_no_gpu(machine: Machine) -> None:
    machine.add("nvidia-smi", FAILS)
    assert "\n[python][-m][amped.run]" in machine.run("launch/quickstart").stdout
    assert machine.installed() == ["mpi,report,tables"]


def test_mpi_of_the_system(machine: Machine) -> None:
    machine.run("launch/quickstart")
    mixed = machine.run("launch/quickstart", AMPED_MPI="system")
    assert mixed.returncode == 1
    assert "contains its own MPI" in mixed.stderr
    (machine.stubs / "mpirun").unlink()
    machine.add("mpirun", MPIRUN)
    done = machine.run("launch/quickstart", AMPED_MPI="system", AMPED_VENV=str(machine.elsewhere / "venv"))
    assert "[python][-m][amped.run]" in done.stdout
    assert (machine.log.read_text().splitlines())[-1] == f"{machine.project}[report,tables]"


def stages(output: str) -> dict[str, str]:
    """Return the result of each stage from the table at the end."""
    return dict(re.findall(r"^(\S.*?)\s+\d+ s  (\S+)", output, re.MULTILINE))


RANKS = [f"tests, ranks: {ranks}" for ranks in (1, 2, 3, 4)]
ALL = [
    "ruff check",
    "ruff format",
    "clang-format",
    "mypy --strict",
    "lint-imports",
    "tests, serial",
    *RANKS,
    "documents",
]


@pytest.mark.parametrize("script", ["launch/test", ".ci/run"])
def test_every_stage_runs(machine: Machine, script: str) -> None:
    done = machine.run(script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stages(done.stdout) == dict.fromkeys(ALL, "passed")
    assert re.search(r"launch/test: 0 of 11 stages failed, \d+ s, of which \d+ installing\n$", done.stdout)


def test_processes_of_tests_leave_the_cores_to_each_other(machine: Machine) -> None:
    assert machine.run("launch/test").stdout.count("BLAS 1, yield 1\n") == 5


def test_quick(machine: Machine) -> None:
    done = machine.run("launch/test", "--quick", "-x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert stages(done.stdout) == dict.fromkeys([*ALL[:6], "tests, ranks: 2"], "passed")
    assert done.stdout.count("-m quick tests ") == 2
    assert "--quick" not in done.stdout
    assert re.search(r" -x$", done.stdout, re.MULTILINE)


def test_exhaustive_has_the_oldest_numba_that_is_allowed(machine: Machine) -> None:
    (machine.project / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    done = machine.run("launch/test", "--exhaustive")
    assert stages(done.stdout) == dict.fromkeys([*ALL, "tests, oldest Numba"], "passed")
    assert "rank none: -m pytest -p no:cacheprovider tests/amped/backend/cpu\n" in done.stdout
    (allowed,) = re.findall(r'"numba>=([\d.]+),<[\d.]+"', (ROOT / "pyproject.toml").read_text())
    assert f"numba=={allowed}" in machine.log.read_text()


def test_coverage(machine: Machine) -> None:
    """All processes of tests count lines into one folder; then they are put together, once."""
    (machine.stubs / "coverage").write_text('#!/usr/bin/env bash\nprintf "[%s]" "${PWD##*/}" "$@"; echo\n')
    machine.add(
        "python3.11", PYTHON.replace('"-m pytest "*) ', '"-m pytest "*) echo "counts in ${COVERAGE_FILE##*/}";')
    )
    done = machine.run("launch/test", "--coverage")
    assert stages(done.stdout) == dict.fromkeys([*ALL, "coverage"], "passed")
    assert "--coverage" not in done.stdout
    assert done.stdout.count("counts in lines") == 5
    assert f"[coverage][combine][-q][--rcfile={machine.project}/pyproject.toml]" in done.stdout
    assert f"[{machine.project.name}][report]" in done.stdout
    assert "counts in lines" not in machine.run("launch/test").stdout


def test_failures_do_not_stop_later_stages(machine: Machine) -> None:
    (machine.stubs / "ruff").write_text(FAILS.replace("exit", "echo E501 of ruff; exit"))
    done = machine.run("launch/test")
    assert done.returncode == 1
    assert stages(done.stdout) == dict.fromkeys(ALL, "passed") | {"ruff check": "FAILED", "ruff format": "FAILED"}
    end = "\nruff check:\n    E501 of ruff\nruff format:\n    E501 of ruff\n\nlaunch/test: 2 of 11 stages failed"
    assert end in done.stdout


def test_warnings_of_the_site_fail(machine: Machine) -> None:
    (machine.stubs / "sphinx-build").write_text('#!/usr/bin/env bash\nprintf "[%s]" "$@"; exit 1\n')
    alone, within = machine.run("launch/docs"), machine.run("launch/test")
    assert alone.returncode == 1
    assert alone.stdout.endswith("[docs][build/docs]")
    assert "[-W][--keep-going][-n]" in alone.stdout
    assert stages(within.stdout) == dict.fromkeys(ALL, "passed") | {"documents": "FAILED"}


def test_only_rank_zero_prints_unless_others_fail(machine: Machine) -> None:
    passed = machine.run("launch/test", "-k", "a or b")
    assert passed.stdout.count("rank 0: -m pytest --with-mpi") == 4
    assert "--with-mpi -p no:cacheprovider --durations=20 tests -k a or b" in passed.stdout
    assert "rank 1:" not in passed.stdout
    one = machine.run("launch/test", FAILING="2")
    assert stages(one.stdout) == dict.fromkeys(ALL, "passed") | dict.fromkeys(RANKS[2:], "FAILED")
    assert one.stdout.count("rank 2: -m pytest") == 2
    named = "".join(f"{name}:\n    test_x\n" for name in RANKS[2:])
    assert f"\n{named}\nlaunch/test: 2 of 11 stages failed" in one.stdout
    assert "rank 1:" not in one.stdout
    silent = machine.run("launch/test", PYTEST_CODE="1")
    assert silent.returncode == 1
    assert re.split(r"\nruff check +\d", silent.stdout)[0].count("rank 1:") == 3


@pytest.mark.parametrize(("arguments", "code"), [((), 1), (("-k", "nothing"), 0)])
def test_no_test_at_all_fails_unless_selected(machine: Machine, arguments: tuple[str, ...], code: int) -> None:
    assert machine.run("launch/test", *arguments, PYTEST_CODE="5").returncode == code


@pytest.mark.parametrize("script", SLURM, ids=lambda path: path.name)
def test_slurm_scripts(script: Path, machine: Machine) -> None:
    machine.run("launch/quickstart")
    (machine.project / ".venv" / "bin" / "activate").write_text("")
    machine.add("srun", '#!/usr/bin/env bash\nprintf "[%s]" "$PMIX_MCA_psec" "$@"\n')
    (machine.project / "script").write_text(script.read_text())
    (machine.project / "script").chmod(0o755)
    done = machine.run(
        "script", SLURM_SUBMIT_DIR=str(machine.project), SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="8", SLURM_NTASKS="4"
    )
    options = "[--gpu-bind=none][--cpus-per-task=8][--kill-on-bad-exit=0][--wait=60]"
    assert done.stdout.startswith(f"[native][--mpi=pmix]{options}[python][-m][amped.run][cpd][/path/to/tensor.")
    assert done.stdout.endswith("[--rank][32][--output][amped-7][--checkpoint][amped-7/checkpoint][--resume]")


@pytest.mark.parametrize("script", SLURM, ids=lambda path: path.name)
@pytest.mark.parametrize(("code", "queued"), [(0, ""), (1, ""), (75, "[requeue][7]")])
def test_slurm_scripts_queue_what_was_told_to_stop_again(
    script: Path, machine: Machine, code: int, queued: str
) -> None:
    (machine.project / ".venv" / "bin").mkdir(parents=True)
    (machine.project / ".venv" / "bin" / "activate").write_text("")
    machine.add("srun", f"#!/usr/bin/env bash\nexit {code}\n")
    machine.add("scontrol", '#!/usr/bin/env bash\nprintf "[%s]" "$@"\n')
    (machine.project / "script").write_text(script.read_text())
    (machine.project / "script").chmod(0o755)
    done = machine.run("script", SLURM_SUBMIT_DIR=str(machine.project), SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="8")
    assert (done.returncode, done.stdout) == (code, queued)


@pytest.mark.parametrize("script", SLURM, ids=lambda path: path.name)
def test_slurm_directives(script: Path) -> None:
    directives = re.findall(r"^#SBATCH (--\S+)", script.read_text(), re.MULTILINE)
    assert "--signal=USR1@120" in directives  # no B: the signal is for the ranks
    assert not [line for line in directives if "gpus-per-task" in line or "gpu-bind" in line]
    assert script.read_text().count("<==") == 3  # two lines to change, and the mention of them


@pytest.mark.parametrize(
    ("recipe", "copied"), [("Containerfile", r"^COPY (.+) \S+$"), ("amped.def", r"^    (\S+) /src/\S+$")]
)
def test_containers_copy_what_exists(recipe: str, copied: str) -> None:
    lines = re.findall(copied, (ROOT / "launch" / "container" / recipe).read_text(), re.MULTILINE)
    names = {name for line in lines for name in line.split()}
    assert names == {"pyproject.toml", "README.md", "partitioner", "amped"}
    assert all((ROOT / name).exists() for name in names)


def test_containerfile_lints() -> None:
    hadolint = shutil.which("hadolint", path=LINTERS)
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    recipe = ROOT / "launch" / "container" / "Containerfile"
    done = subprocess.run([hadolint, str(recipe)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sections_of_the_apptainer_recipe_are_scripts() -> None:
    """Every line belongs to the header or a section that Apptainer knows; those that it runs are clean for sh."""
    head, *pieces = re.split(r"^%", (ROOT / "launch" / "container" / "amped.def").read_text(), flags=re.MULTILINE)
    assert [line for line in head.splitlines() if not re.match(r"#|$", line)] == [
        "Bootstrap: docker",
        "From: python:3.12-slim-bookworm",
    ]
    sections = dict(piece.split("\n", 1) for piece in pieces)
    assert list(sections) == ["files", "post", "environment", "runscript", "help"]
    shellcheck = shutil.which("shellcheck", path=LINTERS)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    for name in ("post", "environment", "runscript"):
        done = subprocess.run([shellcheck, "-s", "sh", "-"], input=sections[name], capture_output=True, text=True)
        assert done.returncode == 0, f"%{name}\n{done.stdout}{done.stderr}"
