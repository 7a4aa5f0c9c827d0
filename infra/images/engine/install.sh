#!/bin/sh
# install.sh PYTHON LOCK: what infra/locks/LOCK.txt says, and torch in the build that $TORCH names, cuda or cpu.
set -eu
python=$1
lock=infra/locks/$2.txt
case "$TORCH" in
    cuda) cuda="-r infra/locks/cuda.txt" ;;
    cpu) cuda= ;;
    *) echo "the build argument TORCH must be cuda or cpu, got '$TORCH'" >&2; exit 1 ;;
esac
install="$python -m pip install --no-cache-dir --no-deps --require-hashes"

# Fetched without hashes, installed with: asked for with hashes, pip passes over a folder's CPU wheel for the CUDA build.
wheels=$(mktemp -d)
"$python" -m pip download --no-cache-dir --no-deps --only-binary :all: --dest "$wheels" \
    "$(grep -o '^torch==[^ ]*' infra/locks/torch.txt)"
$install --no-index --find-links "$wheels" -r infra/locks/torch.txt
rm -r "$wheels"
found=$("$python" -c 'from importlib.metadata import requires; print("cuda" if "nvidia-" in str(requires("torch")) else "cpu")')
if [ "$found" != "$TORCH" ]; then
    echo "TORCH=$TORCH, and pip found torch's $found build first: name a page with the other's wheel by" \
        "LAMINAR_TORCH_WHEELS in .env (--build-arg PIP_FIND_LINKS=...), or build with TORCH=$found" >&2
    exit 1
fi
$install $cuda -r "$lock"
