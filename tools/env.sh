#!/usr/bin/env bash
# Make the environment: a virtual environment with TensorFlow, Open MPI, mpi4py,
# Horovod where it builds, and this project. Each finished stage leaves a stamp
# that holds the fingerprint of what it was made from, so a second run does
# nothing and an interrupted one goes on where it stopped. `tools/env.sh torch`
# adds PyTorch.
#
#   VENV=.venv         where
#   PYTHON=3.12        which version, or which interpreter; without it, the first of VERSIONS that starts
#   HOROVOD=           without Horovod
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
HOROVOD=${HOROVOD-0.28.1}
VERSIONS="3.11 3.12 3.13" # of Python, each with a tools/constraints-*.txt

say() { printf 'env: %s\n' "$*"; }
refuse() { say "$*" >&2; exit 1; }

# The version of an interpreter, such as 3.12; nothing where it does not start.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }
makes_environments() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
is_tried() { [ -n "$1" ] && [[ " $VERSIONS " == *" $1 "* ]]; }

# Why an interpreter of this version is not taken.
why_not() {
    if is_tried "$1"; then echo "Python $1 lacks venv or ensurepip (on Debian: apt install python$1-venv)"
    elif [ "${1#*.}" -ge 14 ]; then echo "Python $1 has no wheels of TensorFlow yet; ${VERSIONS// /, } have"
    else echo "Python $1 is too old; ${VERSIONS// /, } are tried"; fi
}

find_python() {
    local wanted=$VERSIONS version candidate there="" named=${PYTHON:-}
    named=${named#python}
    if [[ $named =~ ^3\.[0-9]+$ ]]; then
        is_tried "$named" || refuse "PYTHON=$PYTHON: $(why_not "$named").$(how_to_get)"
        wanted=$named
    elif [ -n "${PYTHON:-}" ]; then
        version=$(version_of "$PYTHON")
        [ -n "$version" ] || refuse "PYTHON=$PYTHON does not start.$(how_to_get)"
        is_tried "$version" && makes_environments "$PYTHON" \
            || refuse "PYTHON=$PYTHON: $(why_not "$version").$(how_to_get)"
        echo "$PYTHON"; return
    fi
    for version in $wanted; do # version managers keep some that are not on PATH
        for candidate in "python$version" python3 python \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python3 \
            "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-"$version".*/bin/python3; do
            [ "$(version_of "$candidate")" = "$version" ] || continue
            if makes_environments "$candidate"; then echo "$candidate"; return; fi
        done
    done
    for candidate in ${wanted//3./python3.} python3.14 python3; do
        version=$(version_of "$candidate")
        [ -n "$version" ] && there=" $(why_not "$version")." && break
    done
    refuse "no Python ${wanted// /, } that starts was found.$there$(how_to_get)"
}

how_to_get() {
    echo " To get one without root: uv python install 3.13 (https://docs.astral.sh/uv), then make env; or conda create" \
        "-y -p \$HOME/python3.13 python=3.13, then make env PYTHON=\$HOME/python3.13/bin/python"
}

fingerprint() { cat "$@" | cksum | cut -d' ' -f1; }
is_done() { [ "$(cat "$VENV/.stage-$1" 2>/dev/null)" = "$2" ]; }
set_done() { printf '%s' "$2" > "$VENV/.stage-$1"; }

version=$(version_of "$VENV/bin/python")
if [ -n "${PYTHON:-}" ] || ! is_tried "$version"; then
    made=$version
    python=$(find_python)
    version=$(version_of "$python")
    [ -z "$made" ] || [ "$made" = "$version" ] || refuse "$VENV is of Python $made: name another folder for" \
        "Python $version (VENV=$VENV-$version), or remove it"
fi
if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    clear=()
    if [ -e "$VENV/pyvenv.cfg" ]; then
        clear=(--clear) # one that was interrupted, or whose interpreter is gone
    elif [ -n "$(ls -A "$VENV" 2>/dev/null)" ]; then
        refuse "$VENV holds something else than a virtual environment: name another folder, or empty it"
    fi
    say "making the virtual environment $VENV"
    python=${python:-$(find_python)}
    version=$(version_of "$python")
    "$python" -m venv ${clear[@]+"${clear[@]}"} "$VENV"
fi
constraints=tools/constraints-$version.txt
pip=("$VENV/bin/python" -m pip --disable-pip-version-check -qq)

want=$(fingerprint tools/requirements.txt "$constraints")
if ! is_done packages "$want"; then
    say "installing TensorFlow, Open MPI, mpi4py and the libraries (1 to 3 minutes)"
    "${pip[@]}" install -r tools/requirements.txt -c "$constraints"
    set_done packages "$want"
fi

want=$(fingerprint tools/requirements-horovod.txt "$constraints" tools/env.sh)
if [ -z "$HOROVOD" ]; then
    say "Horovod is left out, as HOROVOD= says"
elif [ "$version" = 3.13 ]; then # it needs TensorFlow 2.17 or 2.18, which have no wheels for Python 3.13
    say "Horovod is left out: it does not build against the TensorFlow of Python $version, and MPI exchanges gradients"
elif ! is_done horovod "$want"; then
    if [ -z "$(command -v g++ || command -v c++ || true)" ]; then
        say "Horovod is left out: there is no C++ compiler, and MPI exchanges gradients"
    else
        say "building Horovod $HOROVOD against this TensorFlow (1 to 2 minutes)"
        log=$VENV/horovod-build.log
        # --no-cache-dir: pip would reuse a wheel that was built against another TensorFlow.
        if "${pip[@]}" install -r tools/requirements-horovod.txt -c "$constraints" > "$log" 2>&1 \
            && PATH="$(cd "$VENV" && pwd)/bin:$PATH" MAKEFLAGS=-j2 \
            HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITH_TENSORFLOW=1 \
            HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
            "$VENV/bin/python" -m pip --disable-pip-version-check install --no-cache-dir \
            --no-build-isolation --no-deps --force-reinstall "horovod==$HOROVOD" >> "$log" 2>&1; then
            set_done horovod "$want"
        else
            say "Horovod did not build (see $log): MPI exchanges gradients"
        fi
    fi
fi

want=$(fingerprint tools/requirements-torch.txt "$constraints")
if [ "${1:-}" = torch ] && ! is_done torch "$want"; then
    say "installing PyTorch (where pip finds no build for CPUs alone, one for CUDA of several GB)"
    log=$VENV/torch-install.log
    "${pip[@]}" install -r tools/requirements-torch.txt -c "$constraints" > "$log" 2>&1 || refuse "pip finds no" \
        "$(grep ^torch== "$constraints") for Python $version and this machine, or cannot install it (see $log)"
    set_done torch "$want"
fi

want=$(fingerprint setup.cfg setup.py pyproject.toml)
if ! is_done project "$want"; then
    say "installing this project (editable)"
    "${pip[@]}" install --no-deps --no-build-isolation -e .
    set_done project "$want"
fi
say "ready: $VENV"
