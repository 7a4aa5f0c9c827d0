#!/usr/bin/env bash
# Fetches the wheels that a GPU machine with torch usually lacks, at the versions of our locks (under 60 MB).
#
#     infra/gpu/wheels.sh FOLDER [PYTHON_VERSION, 3.12 unless given]
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:?infra/gpu/wheels.sh FOLDER} version=${2:-3.12}
platforms=()
for number in 17 24 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${number}_x86_64"); done
packages=(pydantic pydantic-core typing-inspection annotated-types typing-extensions)
for package in "${packages[@]}"; do
    grep -hoE "^$package==[^ ;\\]+" "$top"/infra/locks/*.txt | sort -u | head -n 1
done | xargs python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
    "${platforms[@]}" --platform manylinux2014_x86_64 -d "$folder"
size=$(du -sm "$folder" | cut -f1)
echo "$(ls "$folder" | wc -l) wheels, $size MB in $folder"
[ "$size" -le 60 ]
