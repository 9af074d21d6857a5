#!/usr/bin/env bash
# Make the environment: a virtual environment with TensorFlow, Open MPI, mpi4py,
# Horovod and this project. Each finished stage leaves a stamp that holds the
# fingerprint of what it was made from, so a second run does nothing and an
# interrupted one goes on where it stopped.
#
#   VENV=.venv        where
#   PYTHON=python3.11 which interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
HOROVOD=0.28.1

say() { printf 'env: %s\n' "$*"; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"; return
        fi
    done
    say "Python 3.11 was not found; name it: make env PYTHON=/path/to/python3.11" >&2
    exit 1
}

fingerprint() { cat "$@" | cksum | cut -d' ' -f1; }
is_done() { [ "$(cat "$VENV/.stage-$1" 2>/dev/null)" = "$2" ]; }
set_done() { printf '%s' "$2" > "$VENV/.stage-$1"; }

python=$(find_python)
if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    clear=()
    if [ -e "$VENV/pyvenv.cfg" ]; then
        clear=(--clear) # one that was interrupted, or whose interpreter is gone
    elif [ -n "$(ls -A "$VENV" 2>/dev/null)" ]; then
        say "$VENV holds something else than a virtual environment: name another folder, or empty it" >&2
        exit 1
    fi
    say "making the virtual environment $VENV"
    "$python" -m venv ${clear[@]+"${clear[@]}"} "$VENV"
fi
pip=("$VENV/bin/python" -m pip --disable-pip-version-check -qq)

want=$(fingerprint tools/requirements.txt tools/constraints.txt)
if ! is_done packages "$want"; then
    say "installing TensorFlow, Open MPI, mpi4py and the libraries (1 to 3 minutes)"
    "${pip[@]}" install -r tools/requirements.txt -c tools/constraints.txt
    set_done packages "$want"
fi

want=$(fingerprint tools/requirements.txt tools/constraints.txt tools/env.sh)
if ! is_done horovod "$want"; then
    if [ -z "$(command -v g++ || command -v c++ || true)" ]; then
        say "Horovod is left out, because there is no C++ compiler: gradients will be exchanged by MPI"
    else
        say "building Horovod $HOROVOD against this TensorFlow (1 to 2 minutes)"
        log=$VENV/horovod-build.log
        # --no-cache-dir: pip would reuse a wheel that was built against another TensorFlow.
        if PATH="$(cd "$VENV" && pwd)/bin:$PATH" MAKEFLAGS=-j2 \
            HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITH_TENSORFLOW=1 \
            HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
            "$VENV/bin/python" -m pip --disable-pip-version-check install --no-cache-dir \
            --no-build-isolation --no-deps --force-reinstall "horovod==$HOROVOD" > "$log" 2>&1; then
            set_done horovod "$want"
        else
            say "Horovod did not build (see $log): gradients will be exchanged by MPI"
        fi
    fi
fi

want=$(fingerprint setup.cfg pyproject.toml)
if ! is_done project "$want"; then
    say "installing this project (editable)"
    "${pip[@]}" install --no-deps --no-build-isolation -e .
    set_done project "$want"
fi
say "ready: $VENV"
