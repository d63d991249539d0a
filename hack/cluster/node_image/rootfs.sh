#!/usr/bin/env bash
set -euo pipefail
# usage: rootfs.sh ROOTFS KINDMOD HYPERKUBE PAUSE_IMAGE VERSION: turns a debootstrapped tree into a kind node
R=$1 K=$2 H=$3 PAUSE=$4 V=$5
rm -rf $R/var/cache/apt/* $R/var/lib/apt/lists/* $R/usr/share/doc/* $R/usr/share/man/* $R/usr/share/locale/* $R/usr/share/info/* $R/var/log/* $R/usr/lib/x86_64-linux-gnu/gconv
cp -r $K/images/base/files/. $R/
chmod -R u+w $R/etc $R/kind $R/usr/local
chmod 755 $R/usr/local/bin/* $R/kind/bin/* ; chmod 644 $R/etc/systemd/system/*.service
mv $R/etc/systemd/system/containerd.service $R/etc/systemd/system/containerd.service.kind
sed -e 's#/usr/local/bin/containerd#/usr/bin/containerd#' -e '/^Limit/d' -e '/^OOMScore/d' $R/etc/systemd/system/containerd.service.kind > $R/etc/systemd/system/containerd.service
rm $R/etc/systemd/system/containerd.service.kind $R/etc/systemd/system/containerd-fuse-overlayfs.service
# systemd trimmed as kind's own base image does
find $R/lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
rm -f $R/lib/systemd/system/multi-user.target.wants/* $R/etc/systemd/system/*.wants/* $R/lib/systemd/system/local-fs.target.wants/* \
  $R/lib/systemd/system/sockets.target.wants/*udev* $R/lib/systemd/system/sockets.target.wants/*initctl* $R/lib/systemd/system/basic.target.wants/*
echo ReadKMsg=no >> $R/etc/systemd/journald.conf
ln -sf /lib/systemd/systemd $R/sbin/init
mkdir -p $R/etc/systemd/system/multi-user.target.wants $R/etc/kubernetes/manifests $R/kind/manifests $R/kind/images $R/etc/cni/net.d
for s in kubelet containerd undo-mount-hacks; do ln -sf /etc/systemd/system/$s.service $R/etc/systemd/system/multi-user.target.wants/$s.service; done
ln -sf /dev/null $R/etc/systemd/system/systemd-binfmt.service
cat > $R/etc/containerd/config.toml <<EOT
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  tolerate_missing_hugetlb_controller = true
  # the host may withhold CAP_SYS_RESOURCE
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  discard_unpacked_layers = true
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
EOT
# From 1.35 on a kubelet refuses cgroup v1 unless it is told not to.
echo -n 'KUBELET_EXTRA_ARGS=--runtime-cgroups=/system.slice/containerd.service --feature-gates=KubeletInUserNamespace=true --fail-cgroupv1=false' > $R/etc/default/kubelet
# Kubernetes
install -m755 $H $R/usr/local/bin/hyperkube
for c in kubelet kubeadm kubectl; do ln -sf /usr/local/bin/hyperkube $R/usr/bin/$c; done
echo -n $V > $R/kind/version
cat > $R/kind/manifests/default-storage.yaml <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/host-path
EOT
cat > $R/kind/manifests/default-cni.yaml <<EOT
# pod-routes.service on each node reads every node's pod range and address
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pod-routes}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pod-routes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pod-routes}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:nodes}]
EOT
cat > $R/kind/bin/pod-routes.sh <<'EOT'
#!/bin/bash
# Bridge network for this node's pod range, and a route to each peer's: what kindnet does, without an image.
export KUBECONFIG=/etc/kubernetes/kubelet.conf
me=$(hostname)
while sleep 1; do
  [ -f $KUBECONFIG ] || continue
  kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}' 2>/dev/null |
  while read -r name cidr ip; do
    [ -n "$ip" ] || continue
    if [ "$name" = "$me" ]; then
      [ -f /etc/cni/net.d/10-bridge.conflist ] || {
        cat > /tmp/cni <<EOC
{"cniVersion":"0.4.0","name":"bridge","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"$cidr"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
EOC
        mv /tmp/cni /etc/cni/net.d/10-bridge.conflist; }
    else
      ip route replace "$cidr" via "$ip"
    fi
  done
  [ -f /etc/cni/net.d/10-bridge.conflist ] && sleep 4
done
EOT
chmod 755 $R/kind/bin/pod-routes.sh
cat > $R/etc/systemd/system/pod-routes.service <<EOT
[Unit]
Description=pod network routes
[Service]
ExecStart=/kind/bin/pod-routes.sh
Restart=always
[Install]
WantedBy=multi-user.target
EOT
cat > $R/etc/systemd/system/load-images.service <<EOT
[Unit]
Description=import the images of the Kubernetes components
After=containerd.service
Requires=containerd.service
Before=kubelet.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for f in /kind/images/*.tar; do ctr -n k8s.io images import \$f; done'
[Install]
WantedBy=multi-user.target
EOT
for s in pod-routes load-images; do ln -sf /etc/systemd/system/$s.service $R/etc/systemd/system/multi-user.target.wants/$s.service; done
# one firewall back end everywhere
ln -sf /usr/sbin/iptables-nft $R/etc/alternatives/iptables; ln -sf /usr/sbin/ip6tables-nft $R/etc/alternatives/ip6tables
sed -i 's/^select_iptables$/: # nft only/' $R/usr/local/bin/entrypoint
# only what the bridge network and runc v2 need
rm -f $R/usr/bin/containerd-shim $R/usr/bin/containerd-shim-runc-v1
for f in $R/usr/lib/cni/*; do case $(basename $f) in bridge|host-local|loopback|portmap) ;; *) rm -f $f;; esac; done
