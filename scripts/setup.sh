#!/bin/sh
# Make a virtual environment and install sanarl into it, in the versions of constraints.txt.
#   scripts/setup.sh VENV EXTRAS        for example: scripts/setup.sh .venv dev
set -eu
venv=$1 extras=${2:-}
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    echo "sanarl needs Python 3.11 to 3.13; $python is $("$python" --version). Name another: make PYTHON=python3.12 ..." >&2
    exit 2
fi
stamp="$venv/.sanarl-$extras"
want=$(cat pyproject.toml constraints.txt | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq python3-venv
    else
        echo "$python cannot make virtual environments; install them first: sudo apt-get install python3-venv" >&2
        exit 2
    fi
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --upgrade pip
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable ".${extras:+[$extras]}"
case ",$extras," in
    *,rewards,*) "$venv/bin/python" -m pip install --quiet --constraint constraints.txt --no-deps image-reward ;;
esac
case ",$extras," in
*,dev,*) # the tests of the reward service start a real Redis, those of reports a real browser
    missing=
    command -v redis-server >/dev/null || missing="$missing redis-server"
    command -v chromium >/dev/null || missing="$missing chromium"
    if [ -n "$missing" ]; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            # shellcheck disable=SC2086
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing
        else
            echo "the tests need$missing; install first: sudo apt-get install$missing" >&2
            exit 2
        fi
    fi
    ;;
esac
echo "$want" >"$stamp"
