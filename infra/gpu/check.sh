#!/usr/bin/env bash
# Checks and measures the engine on this machine's GPU, without a network: at most eight minutes, most important first.
#
#     infra/gpu/check.sh --out FOLDER [--wheels FOLDER] [--rehearse] [--only STEP …]
#
# --out       steps.jsonl (a line a step), measured.md (tables for engine/MEASURED.md) and a log for each step
# --wheels    a folder made by infra/gpu/wheels.sh, for packages that this machine lacks
# --rehearse  on the CPU at a small scale
# PYTHON names the interpreter: 3.11 or newer with torch 2.11 or newer, safetensors, tokenizers and numpy.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
words=() wheels=
while (($#)); do
    case $1 in
    --wheels) wheels=${2:?--wheels needs a folder} && shift 2 ;;
    *) words+=("$1") && shift ;;
    esac
done
export PYTHONPATH=$top${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -n "$wheels" ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
    export PYTHONPATH=$PYTHONPATH:$site
fi
for package in torch numpy safetensors tokenizers pydantic; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" || {
        echo "$python has no $package; where there is a network run infra/gpu/wheels.sh FOLDER, then pass --wheels FOLDER" >&2
        exit 2
    }
done
"$python" -m infra.gpu.check "${words[@]}"
