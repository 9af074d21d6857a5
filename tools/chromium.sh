#!/usr/bin/env bash
# Print the path of a Chromium that starts. If there is none, install it by apt-get, which needs root.
# Without one, say why and exit with status 1.
set -euo pipefail
NAMES="chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable"
PACKAGES="chromium-headless-shell chromium" # of Debian; Ubuntu has Chromium as a snap only

refuse() { printf 'chromium: %s\n' "$*" >&2; exit 1; }

find_chromium() {
    local name
    for name in $NAMES; do # Ubuntu has a script of this name that only asks for a snap
        if "$name" --version > /dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

if find_chromium; then exit; fi
command -v apt-get > /dev/null || refuse "no Chromium on PATH, and no apt-get to install it"
[ "$(id -u)" = 0 ] || refuse "no Chromium on PATH, and installing it needs root: apt-get install chromium"
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update > /dev/null || true
for package in $PACKAGES; do
    "${apt[@]}" install -y --no-install-recommends "$package" fonts-dejavu-core > /dev/null 2>&1 || continue
    if find_chromium; then exit; fi
done
refuse "apt-get could not install any of $PACKAGES"
