#!/usr/bin/env bash
# usage: component-images.sh ROOTFS HYPERKUBE COREDNS NAMES OUT
# One archive of the control plane's images, built without a registry; the file NAMES lists what kubeadm calls them.
set -euo pipefail
rootfs=$1 hyperkube=$2 coredns=$3 names=$4 out=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One image plays all of Kubernetes: the binary and, for kube-proxy, the firewall's programs with their libraries.
k=$work/kubernetes
mkdir -p "$k"/{usr/local/bin,usr/sbin,sbin,tmp,etc,usr/lib/x86_64-linux-gnu,lib/x86_64-linux-gnu,lib64} "$work/pause" "$work/dns/etc/ssl"
install -m755 "$hyperkube" "$k/usr/local/bin/hyperkube"
for each in kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd; do ln -s hyperkube "$k/usr/local/bin/$each"; done
cp "$rootfs"/usr/sbin/{xtables-nft-multi,nft,conntrack} "$k/usr/sbin/"
for each in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do ln -s xtables-nft-multi "$k/usr/sbin/$each"; done
cp -r "$rootfs/usr/lib/x86_64-linux-gnu/xtables" "$k/usr/lib/x86_64-linux-gnu/"
for each in xtables-nft-multi nft conntrack; do chroot "$rootfs" ldd "/usr/sbin/$each"; done | grep -oE '/[^ ]+\.so[^ ]*' | sort -u |
  while read -r library; do
    mkdir -p "$k$(dirname "$library")"
    cp -L "$rootfs$library" "$k$library"
  done
printf 'int pause(void);int main(){for(;;)pause();}' >"$work/pause.c"
gcc -static -Os -o "$work/pause/pause" "$work/pause.c"
install -m755 "$coredns" "$work/dns/coredns"

image() { # FOLDER ENTRYPOINT NAME...
  local folder=$1 entrypoint=$2 container name
  shift 2
  container=$(buildah from scratch)
  buildah add -q "$container" "$folder" / >/dev/null
  buildah config --entrypoint "$entrypoint" --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  buildah commit -q --rm "$container" "$1" >/dev/null
  for name in "${@:2}"; do buildah tag "$1" "$name"; done
}
mapfile -t kubernetes < <(grep -E '/(kube-|etcd:)' "$names")
mapfile -t all <"$names"
image "$k" '[]' "${kubernetes[@]}"
image "$work/pause" '["/pause"]' "$(grep /pause: "$names")"
image "$work/dns" '["/coredns"]' "$(grep coredns "$names")"
mkdir -p "$out"
rm -f "$out"/*.tar
podman save -q --format docker-archive -m -o "$out/kubernetes.tar" "${all[@]}"
