#!/bin/sh
# sh infra/upgrade.sh: from the images that run to those of the LAMINAR_VERSION in .env, forwards or back. Where
# docker-compose.yml lies; COMPOSE names another program than `docker compose`.
#
#   build, if they are not there ─▶ migrate, while the old version serves ─▶ web, worker, beat one after the other
#
# What fails leaves the old version running. Ray nodes stay as they are: their jobs go on.
set -eu
compose=${COMPOSE:-docker compose}
version=$(sed -n 's/^LAMINAR_VERSION=//p' .env)
image=laminar-web:$version

if [ -z "$version" ]; then
    echo "LAMINAR_VERSION in .env: the name of the version to come, got nothing" >&2
    exit 1
fi
if $compose images web | grep -q "laminar-web *$version "; then
    echo "laminar-web:$version runs already: name the version to come in .env, by a name of its own, so that you can go" \
        "back to this one" >&2
    exit 1
fi

docker image inspect "$image" laminar-engine:"$version" >/dev/null 2>&1 || $compose build
$compose run --rm migrate
for service in web worker beat; do
    $compose up --detach --no-deps --wait "$service"
done
echo "The site runs $version. Ray nodes go on as they are; \`$compose up --detach\` replaces them, and every job that runs" \
    "begins again at its last checkpoint."
