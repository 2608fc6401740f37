#!/bin/sh
# Puts etcd, promtool and the programs of Kubernetes into a cache directory, for the tests of this directory.
#
#   fetch.sh [CACHE]     CACHE is ${XDG_CACHE_HOME:-$HOME/.cache}/evictd if not given
#
# It installs nothing. It unpacks promtool from Debian's package prometheus (apt verifies the signature), and builds
# kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and the kubelet from the Go module k8s.io/kubernetes,
# etcd in the version that is Kubernetes' own, kustomize in the version that kubectl contains, and Helm
# (kubernetes/go.sum has the checksums of all modules), which takes six minutes on two cores. The environment variable
# GO may name another go command. It keeps what is already there. Exit status 0 means that CACHE/cluster/promtool and
# the programs CACHE/cluster/NAME-VERSION, of which VERSION is that of Kubernetes, can run here.
#
# Debian's etcd is not used: with 3.4 this API server refuses lists that are streamed as a watch (Cacher.Watch in
# k8s.io/apiserver/pkg/storage/cacher/cacher.go), which clients use everywhere else.
#
# The kubelet is called node-agent-VERSION: an evictd that runs on the machine takes a process whose executable is
# called kubelet for that of its own node.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^require k8s.io\/kubernetes v//p' "$here/kubernetes/go.mod")
cache=${1:-${XDG_CACHE_HOME:-${HOME:?is not set, and no cache directory was given}/.cache}/evictd}/cluster
mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# shellcheck source=tests/debian.sh
. "$here/../debian.sh"
if [ ! -x "$cache/promtool" ]; then
	unpack prometheus
	mv "$work/root/usr/bin/promtool" "$cache/promtool"
fi

# The package of each program, its name as it is built, its name in the cache, and what makes it print its version.
programs="k8s.io/kubernetes/cmd/kube-apiserver kube-apiserver kube-apiserver --version
k8s.io/kubernetes/cmd/kube-controller-manager kube-controller-manager kube-controller-manager --version
k8s.io/kubernetes/cmd/kube-scheduler kube-scheduler kube-scheduler --version
k8s.io/kubernetes/cmd/kubectl kubectl kubectl version --client
k8s.io/kubernetes/cmd/kubelet kubelet node-agent --version
sigs.k8s.io/kustomize/kustomize/v5 kustomize kustomize version
go.etcd.io/etcd/server/v3 server etcd --version
helm.sh/helm/v3/cmd/helm helm helm version"

# One build, in which they share the packages, for all that are missing.
packages=$(echo "$programs" | while read -r package _ name _; do
	[ -x "$cache/$name-$version" ] || echo "$package"
done)
if [ -n "$packages" ]; then
	mkdir "$work/bin"
	# With -mod=readonly a module without a checksum in go.sum is an error, whatever else the environment says. The
	# list of packages is split into words.
	# shellcheck disable=SC2086
	(cd "$here/kubernetes" && CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off "${GO:-go}" build -trimpath \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" -o "$work/bin/" $packages)
fi
echo "$programs" | while read -r _ built name print; do
	[ ! -e "$work/bin/$built" ] || mv "$work/bin/$built" "$cache/$name-$version"
	# The arguments are split into words.
	# shellcheck disable=SC2086
	"$cache/$name-$version" $print >/dev/null
done
"$cache/promtool" --version >/dev/null
echo "promtool, etcd and Kubernetes $version are in $cache"
