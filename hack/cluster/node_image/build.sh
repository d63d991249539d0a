#!/usr/bin/env bash
# usage: build.sh WORKDIR VERSION: builds localhost/kindest-node:vVERSION (1.34.4) from Go modules and Debian
# packages: no registry. About 10 minutes on 2 cores, 7 of them compiling Kubernetes; 2 once that is done. As root;
# packages: hack/cluster/engine.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(realpath -m "${1:?work directory}") version=${2:?a release of Kubernetes} kind=v0.30.0 coredns=v1.12.1
mkdir -p "$work/coredns"
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0

[ -x "$work/hyperkube" ] || bash "$here/../hyperkube/build.sh" "$work/module" "$work/hyperkube" "$version"

if [ ! -x "$work/coredns/coredns" ]; then
  cd "$work/coredns"
  cp "$here/coredns.go" main.go
  rm -f go.mod go.sum
  go mod init local/coredns
  go mod edit -require="github.com/coredns/coredns@$coredns"
  go mod tidy
  go build -trimpath -ldflags "-s -w" -o coredns .
fi
go mod download "sigs.k8s.io/kind@$kind" # its sources carry the scripts of a node

mirror=$(grep -rhoE 'https?://\S+/debian/?(\s|$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n1 | tr -d '[:space:]') || true
rm -rf "$work/rootfs"
debootstrap --variant=minbase --include=systemd,systemd-sysv,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,jq,procps,ca-certificates,containerd,containernetworking-plugins,curl,dbus \
  bookworm "$work/rootfs" ${mirror:+"$mirror"}
# kubeadm knows the names under which it looks for its images.
ln -sf hyperkube "$work/kubeadm"
"$work/kubeadm" config images list --kubernetes-version "v$version" 2>/dev/null >"$work/images"
bash "$here/rootfs.sh" "$work/rootfs" "$(go env GOMODCACHE)/sigs.k8s.io/kind@$kind" "$work/hyperkube" "$(grep /pause: "$work/images")" "v$version"
bash "$here/component-images.sh" "$work/rootfs" "$work/hyperkube" "$work/coredns/coredns" "$work/images" "$work/rootfs/kind/images"

container=$(buildah from scratch)
buildah add -q "$container" "$work/rootfs" / >/dev/null
buildah config --entrypoint '["/usr/local/bin/entrypoint","/sbin/init"]' --stop-signal SIGRTMIN+3 --env container=podman \
  --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah commit -q --rm "$container" "localhost/kindest-node:v$version"
rm -rf "$work/rootfs"
