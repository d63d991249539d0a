#!/usr/bin/env bash
# usage: base.sh FOLDER IMAGE: a base image of Debian's own packages, for where no registry is in reach
set -euo pipefail
folder=$1 image=$2
mirror=$(grep -rhoE 'https?://\S+/debian/?(\s|$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | grep -v -m1 '^#' | tr -d '[:space:]') || true
rm -rf "$folder" && mkdir -p "$folder"
debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$folder" ${mirror:+"$mirror"}
rm -rf "$folder"/var/cache/{apt,debconf,ldconfig}/* "$folder"/var/lib/apt/lists/* "$folder"/usr/share/{man,locale,info}/* \
  "$folder"/var/log/* "$folder"/var/lib/dpkg/*-old "$folder"/etc/{hostname,resolv.conf,machine-id} "$folder"/etc/*- "$folder"/tmp/*
# Copyright files stay: licences ask for them.
find "$folder"/usr/share/doc -type f ! -name copyright -delete
# Compiled without times of files, which the image may change.
find "$folder"/usr/lib/python3* -name __pycache__ -prune -exec rm -rf {} +
chroot "$folder" python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 /usr/lib/python3 || true
container=$(buildah from scratch)
buildah add --quiet "$container" "$folder" / >/dev/null
buildah config --env LANG=C.UTF-8 "$container"
buildah commit --quiet --rm "$container" "$image"
rm -rf "$folder"
